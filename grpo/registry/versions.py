"""Registered versions for people and programs: aliases, held-out result, verdict, time and run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from grpo.errors import AddressError, SignatureError
from grpo.policy.weights.promotion_records import CHAMPION, is_absent, state_of
from grpo.policy.weights.registered import HELDOUT, REGISTERED, as_version
from grpo.policy.weights.registry_pages import all_models
from grpo.registry.provenance import HeldOut
from grpo.registry.store import Registry
from grpo.storage.documents import Document

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion as MlflowVersion
    from mlflow.entities.model_registry import RegisteredModel


class VersionSummary(Document):
    """One registered version. What it says about itself is believed only if `refusal` is None."""

    name: str
    version: int
    address: str
    """Address by number, which every command takes."""
    aliases: list[str]
    verdict: str | None
    """Verdict of its gates. None if no run of this pipeline registered the version."""
    heldout: HeldOut | None
    registered: str
    """UTC, ISO 8601."""
    run: str | None
    """Name of the run. None if MLflow does not have the run any more."""
    run_id: str
    refusal: str | None
    """Reason why no command takes it: it is not signed, or it was changed. None if its signature is valid."""
    in_service: bool
    """True if it was promoted last."""
    moved: str | None
    """Sentence that is given if the alias `champion` was moved by hand, both for the version in service and for the
    version that the alias names."""


def list_versions(registry: Registry, name: str | None = None) -> list[VersionSummary]:
    """Versions of one model or of all, newest first. Raises `AddressError` for a model that is not registered."""
    models = _models(registry)
    if name is not None:
        if name not in models:
            known = ", ".join(sorted(models)) or "none"
            raise AddressError(f"no model {name!r} is registered. There are {known}")
        models = {name: models[name]}
    run_name = cache(lambda run_id: _run_name(registry, run_id))
    rows = [
        _summary(version, model, promotions, run_name)
        for model in models.values()
        for promotions in [_promotions(registry, model)]
        for version in registry.listed(model.name)
    ]
    return sorted(rows, key=lambda row: (row.registered, row.version), reverse=True)


def _promotions(registry: Registry, model: RegisteredModel) -> tuple[int | None, int | None, str | None]:
    """Version in service, version that the alias names, and what is wrong with the promotions of a model."""
    alias = int(model.aliases[CHAMPION]) if CHAMPION in model.aliases else None
    try:
        state = state_of(registry.client, model)
    except SignatureError as error:
        return None, alias, str(error)
    return state.champion, alias, state.moved


def _summary(
    version: MlflowVersion,
    model: RegisteredModel,
    promotions: tuple[int | None, int | None, str | None],
    run_name: Callable[[str], str | None],
) -> VersionSummary:
    number, tags, (champion, alias, moved) = int(version.version), version.tags, promotions
    try:
        as_version(version)
        refusal = None
    except SignatureError as error:
        refusal = str(error)
    return VersionSummary(
        name=version.name,
        version=number,
        address=f"{REGISTERED}{version.name}/{number}",
        aliases=sorted(name for name, named in model.aliases.items() if int(named) == number),
        verdict=tags.get("verdict"),
        heldout=HeldOut.parse(tags.get(HELDOUT, "")),
        registered=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC).isoformat(timespec="seconds"),
        run=run_name(version.run_id) if version.run_id else None,
        run_id=version.run_id or "",
        refusal=refusal,
        in_service=number == champion,
        moved=moved if number in (champion, alias) else None,
    )


def _models(registry: Registry) -> dict[str, RegisteredModel]:
    return {model.name: model for model in all_models(registry.client)}


def _run_name(registry: Registry, run_id: str) -> str | None:
    from mlflow.exceptions import MlflowException

    try:
        return str(registry.client.get_run(run_id).info.run_name)
    except MlflowException as error:
        if is_absent(error):
            return None
        raise
