"""Registered versions for people and programs: aliases, held-out result, verdict, time and run."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from grpo.errors import AddressError
from grpo.policy.weights.registered import as_version, is_absent
from grpo.registry.provenance import HeldOut
from grpo.registry.store import HELDOUT, Registry
from grpo.storage.documents import Document

if TYPE_CHECKING:
    from mlflow.entities.model_registry import RegisteredModel

_PAGE = 1000


class VersionSummary(Document):
    """One registered version."""

    name: str
    version: int
    address: str
    """Address by number, which every command takes."""
    aliases: list[str]
    verdict: str | None
    """Verdict of its gates; None for a version that no run of this pipeline registered."""
    heldout: HeldOut | None
    registered: str
    """UTC, ISO 8601."""
    run: str | None
    """Name of the run; None where MLflow has it no more."""
    run_id: str


def list_versions(registry: Registry, name: str | None = None) -> list[VersionSummary]:
    """Versions of one model or of all, newest first. Raises `AddressError` for a model that is not registered."""
    models = _models(registry)
    if name is not None:
        if name not in models:
            known = ", ".join(sorted(models)) or "none"
            raise AddressError(f"no model {name!r} is registered; there are {known}")
        models = {name: models[name]}
    run_name = cache(lambda run_id: _run_name(registry, run_id))
    rows = []
    for model in models.values():
        for version in registry.client.search_model_versions(f"name = '{model.name}'", max_results=10_000):
            known_version = as_version(version)
            tags = known_version.tags
            rows.append(
                VersionSummary(
                    name=known_version.name,
                    version=known_version.version,
                    address=known_version.address,
                    aliases=sorted(
                        alias for alias, number in model.aliases.items() if int(number) == known_version.version
                    ),
                    verdict=tags.get("verdict"),
                    heldout=HeldOut.parse(tags.get(HELDOUT, "")),
                    registered=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC).isoformat(
                        timespec="seconds"
                    ),
                    run=run_name(version.run_id) if version.run_id else None,
                    run_id=version.run_id or "",
                )
            )
    return sorted(rows, key=lambda row: (row.registered, row.version), reverse=True)


def _models(registry: Registry) -> dict[str, RegisteredModel]:
    models: dict[str, RegisteredModel] = {}
    token = None
    while True:
        page = registry.client.search_registered_models(max_results=_PAGE, page_token=token)
        models |= {model.name: model for model in page}
        if not (token := page.token):
            return models


def _run_name(registry: Registry, run_id: str) -> str | None:
    from mlflow.exceptions import MlflowException

    try:
        return str(registry.client.get_run(run_id).info.run_name)
    except MlflowException as error:
        if is_absent(error):
            return None
        raise
