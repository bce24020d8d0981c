"""Registered versions by address: `models:/support-desk@champion`, or `models:/support-desk/3`.

Anybody who can write to the registry can write anything into it. So nothing in a version is trusted before its
signature is verified. A `ModelVersion` is a verified version. Code of this package gets no other kind, except to list
versions.

    signed       name and run of the version, and the tags in `SIGNED`, e.g. the digests of the checkpoint, of the
                 registered files, of `MLmodel`, which has the provenance, and of the evaluation
    verified     the files at its source. Each reader compares them with the digests, because the source is not signed:
                 it changes when the home is moved
    displayed    everything else: further tags, descriptions, parameters, metrics, other files of runs, other aliases
    read as is   the time of registration, from which retraining computes the age of the champion, and the run's number

The signature is the tag `signature`, which is written in the transaction that makes the version. The alias `champion`
is not trusted. `models:/NAME@champion` is the version that was promoted last, according to the signed records of
`grpo.policy.weights.promotion_records`, and `previous` is the target of a rollback.

A signed version can be copied to another number of the same model, and the copy is verified as well, because the number
is not known when the version is signed. The copy does not enter service by that, because a promotion names both the
number and the content.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from grpo.artifacts import Artifact, store_of
from grpo.config.version_tags import SIGNATURE, SIGNED
from grpo.errors import AddressError, ArtifactError, ConfigError, SignatureError, printable
from grpo.policy.weights.promotion_records import (
    CHAMPION,
    PREVIOUS,
    PromotionState,
    is_absent,
    missing_champion,
    promotion_state,
)
from grpo.storage.credentials import masked
from grpo.storage.databases import exclusive, is_database, is_new, make_tracking
from grpo.storage.documents import Document
from grpo.storage.home import home
from grpo.storage.moved import check_not_moved
from grpo.storage.schemas import require_newest
from grpo.storage.signing import KEY, Unverified, canonical, key_file, sign, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion as MlflowVersion

logger = logging.getLogger(__name__)
REGISTERED = "models:/"
_ADDRESS = re.compile(r"^models:/(?P<name>\w[\w.-]*)(@(?P<alias>[\w.-]+)|/(?P<version>[0-9]{1,9}))$")
"""A version number has up to nine digits, because databases store no longer ones."""

MODEL_DIGEST, MLMODEL_DIGEST, EVALUATION_DIGEST = "model_sha256", "mlmodel_sha256", "evaluation_sha256"
"""Tags of a version: digests of its registered model's files, of the `MLmodel` file, and of its evaluation."""
HELDOUT = "heldout"
"""Tag of a version: its held-out result as text, see `grpo.registry.provenance.HeldOut`."""
_KIND = "version"


def claimed_checkpoint(uri: str, sha256: str) -> Artifact:
    """Checkpoint that the tags of an unverified version name. Raises `ArtifactError` if a tag is invalid."""
    try:
        return Artifact(uri=uri, sha256=sha256, kind="checkpoint")
    except ValidationError as error:
        raise ArtifactError(
            f"{printable(uri)} is not a checkpoint: its sha256 {printable(sha256)[:80]!r} is invalid"
        ) from error


class ModelVersion(Document):
    """A registered version with a verified signature."""

    name: str
    version: int
    run_id: str
    source: str
    """Address of its files. It is not signed, so code that reads the files must compare their digest."""
    tags: dict[str, str]
    """Signed tags."""

    @property
    def address(self) -> str:
        """Address by number, which always names this version."""
        return f"{REGISTERED}{self.name}/{self.version}"

    @property
    def checkpoint(self) -> Artifact:
        """Registered checkpoint. Raises `AddressError` if there is none, and `ArtifactError` if it is invalid."""
        try:
            return claimed_checkpoint(self.tags["checkpoint_uri"], self.tags["checkpoint_sha256"])
        except KeyError as error:
            raise AddressError(
                f"{self.address} has no tag {error}, because no run of this pipeline registered it"
            ) from error

    def verify_checkpoint(self) -> None:
        """Raise `ArtifactError` unless the checkpoint matches its digest, if its store is a folder of this machine."""
        if "checkpoint_uri" in self.tags:
            store = store_of(self.checkpoint)
            if store.is_local and Path(store.root).is_dir():
                store.path(store.own(self.checkpoint))

    @property
    def is_model_alone(self) -> bool:
        """True if the version was admitted without a provenance: only weights, a tokenizer and a chat template."""
        return "admitted" in self.tags and MLMODEL_DIGEST not in self.tags

    @property
    def content(self) -> str:
        """Digest of what would be served, without the number, because another version may get that number later."""
        parts = [self.tags.get(tag, "") for tag in ("run_key", "checkpoint_sha256", MODEL_DIGEST, MLMODEL_DIGEST)]
        return hashlib.sha256(canonical([self.name, *parts]).encode()).hexdigest()


def signed_tags(name: str, *, run_id: str, tags: Mapping[str, str]) -> dict[str, str]:
    """Tags of a new version with its signature."""
    believed = {tag: tags[tag] for tag in SIGNED if tag in tags}
    document = {"format": 1, "name": name, "run_id": run_id, "tags": believed}
    return {**tags, SIGNATURE: sign(_KIND, document)}


def as_version(version: MlflowVersion) -> ModelVersion:
    """Verify a version of MLflow. Raises `SignatureError` with the reason and the command that admits it."""
    if (fault := fault_of(version)) is not None:
        address = f"{REGISTERED}{version.name}/{version.version}"
        raise SignatureError(
            f"{address} {fault}, so nothing in it is trusted. `grpo admit {address} --reason WHY` shows what is in it, "
            "and signs it"
        )
    document = verify(_KIND, version.tags[SIGNATURE])
    return ModelVersion(
        version=int(version.version), source=str(version.source), tags=document["tags"], **_fields(version)
    )


def fault_of(version: MlflowVersion) -> str | None:
    """Reason why a version of MLflow is not trusted, or None if it is."""
    try:
        document = verify(_KIND, version.tags.get(SIGNATURE))
    except Unverified as error:
        if error.fault == "was signed with another key":
            return f"{error.fault} than the one of {key_place()}"
        return error.fault
    changed = [field for field, value in _fields(version).items() if document[field] != value]
    changed += [f"tag {tag}" for tag in SIGNED if version.tags.get(tag) != document["tags"].get(tag)]
    return f"was changed after it was signed ({changed[0]})" if changed else None


def _fields(version: MlflowVersion) -> dict[str, str]:
    return {"name": str(version.name), "run_id": str(version.run_id or "")}


def key_place() -> str:
    """Place of the key that this process uses, for messages."""
    return KEY if os.environ.get(KEY) else str(key_file())


def tracking_uri() -> str:
    """Address of the registry: MLFLOW_TRACKING_URI if it is set, else the database in the home."""
    return os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{home()}/mlflow.db")


def open_client(uri: str) -> MlflowClient:
    """Open MLflow's client of a registry. Only one process at a time creates the tables of a database.

    Raises `ConfigError` if the database belongs to a home that was moved, if another release of MLflow has written it,
    or if the environment names another registry.
    """
    check_not_moved(uri)
    _check_one_registry(uri)
    import mlflow
    from mlflow import MlflowClient

    mlflow.set_tracking_uri(uri)
    with exclusive(uri):
        make_tracking(uri)
        if is_database(uri):
            require_newest(uri)
        client = MlflowClient(uri, registry_uri=uri)
        client.search_experiments(max_results=1)
    return client


def _check_one_registry(uri: str) -> None:
    """Raise `ConfigError` if MLflow would look for versions elsewhere than for runs and their files.

    Files without a version are removed, so that no file may be looked up in a registry that is not its own.
    """
    for name in ("MLFLOW_REGISTRY_URI", "MLFLOW_REGISTRY_STORE_URI"):
        if (other := os.environ.get(name, "")).rstrip("/") not in ("", uri.rstrip("/")):
            raise ConfigError(
                f"{name} is {masked(other)}, and the versions of this project are in the registry of "
                f"MLFLOW_TRACKING_URI, {masked(uri)}. Unset {name}, or set MLFLOW_TRACKING_URI to the same address"
            )


def registered_version(address: str) -> ModelVersion:
    """Version at an address in the registry of this process. Raises the same errors as `resolve_version`."""
    uri = tracking_uri()
    return resolve_version(uri, lambda: open_client(uri), address)


def resolve_version(
    uri: str, connect: Callable[[], MlflowClient], address: str, *, follow_alias: bool = False
) -> ModelVersion:
    """Version at `models:/NAME@alias` or `models:/NAME/3`.

    `champion` and `previous` come from the promotion records, even if the MLflow aliases name other versions. If the
    alias `champion` differs, a warning says so. With `follow_alias` the MLflow aliases decide instead.

    `connect` opens the registry at `uri`. It is not called if the address is wrong or if nothing was ever registered,
    because opening a registry on a new machine creates it. Raises `AddressError` if the version does not exist, and
    `SignatureError` if it is not trusted.
    """
    parts = address_parts(address)
    absent = AddressError(
        f"no model at {address} in the registry {masked(uri)}. `grpo models` lists those that are there"
    )
    if is_new(uri):
        raise absent
    client = connect()
    name, alias, number = parts["name"], parts["alias"], parts["version"]
    if alias in (CHAMPION, PREVIOUS) and not follow_alias:
        version = _promoted(client, name, alias)
    elif alias is not None:
        version = _version_by_alias(client, name, alias)
    else:
        version = version_by_number(client, name, int(number))
    if version is None:
        raise absent
    return version


def address_parts(address: str) -> dict[str, Any]:
    """Name, alias and version in an address. Either alias or version is None. Raises `AddressError`."""
    if (parts := _ADDRESS.match(address)) is None:
        raise AddressError(f"{address!r} is not the address of a model. Write models:/NAME@champion or models:/NAME/3")
    return parts.groupdict()


def promoted_champion(client: MlflowClient, state: PromotionState) -> ModelVersion | None:
    """Version that was promoted last, or None before the first promotion.

    Raises `RegistryError` if the version was deleted, or if the alias names a version although no promotion is signed.
    """
    if (champion := state.champion) is None:
        if state.history or state.alias is not None:
            raise missing_champion(client, state)
        return None
    version = version_by_number(client, state.model, champion)
    if version is None:
        raise missing_champion(client, state)
    return as_promoted(version, state)


def _promoted(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    """Champion, or target of a rollback, according to the promotions of a model, or None if there is none."""
    try:
        state = promotion_state(client, name)
    except AddressError:
        return None
    if alias == CHAMPION:
        if state.moved is not None:
            logger.warning("%s", state.moved)
        return promoted_champion(client, state)
    previous = state.history[-1].previous if state.history else None
    version = None if previous is None else version_by_number(client, name, previous)
    return None if version is None else as_promoted(version, state)


def as_promoted(version: ModelVersion, state: PromotionState) -> ModelVersion:
    """Return the version if its promotion was about this content. Raises `SignatureError` otherwise."""
    contents = [change.content for change in state.history if change.champion == version.version]
    if contents and contents[-1] != version.content:
        raise SignatureError(
            f"{version.address} was replaced after its promotion: the promoted version with this number had other "
            f"content. Promote the new one with grpo promote {version.address} --reason WHY --force, or go back with "
            f"grpo rollback {REGISTERED}{version.name}@{CHAMPION} --reason WHY"
        )
    return version


def _version_by_alias(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    """Version of a model with an alias, or None if there is none."""
    from mlflow.exceptions import MlflowException

    try:
        return as_version(client.get_model_version_by_alias(name, alias))
    except MlflowException as error:
        if is_absent(error):
            return None
        raise


def version_by_number(client: MlflowClient, name: str, number: int) -> ModelVersion | None:
    """Verified version of a model, or None if there is none. Raises `SignatureError` if it is not trusted."""
    version = listed_version(client, name, number)
    return None if version is None else as_version(version)


def listed_version(client: MlflowClient, name: str, number: int) -> MlflowVersion | None:
    """Unverified version of a model as MLflow has it, or None if there is none."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version(name, str(number))
    except MlflowException as error:
        if is_absent(error):
            return None
        raise
