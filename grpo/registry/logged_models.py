"""Files of registered models in MLflow: fetched, and verified by their digests before anything reads them.

MLmodel               YAML, with the provenance under metadata.provenance
model/                weights and config, adapters merged
components/tokenizer
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from grpo.config.loading import parse_yaml
from grpo.errors import AddressError, ArtifactError, ConfigError, SignatureError
from grpo.policy.weights.registered import MLMODEL_DIGEST, MODEL_DIGEST, ModelVersion
from grpo.policy.weights.registry_pages import all_pages, all_versions
from grpo.registry.provenance import PROVENANCE, Provenance
from grpo.storage.databases import is_database
from grpo.storage.fetched import user_temp_folder
from grpo.storage.files import file_digest
from grpo.storage.locks import scratch_path
from grpo.storage.moved import in_this_home

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

MLMODEL = "MLmodel"
NAME = "policy"
"""Name of the logged model of a run."""
HOST = "registered_on"
"""Tag of a logged model: the machine that registers it."""
_ABANDONED_MS = 24 * 3600 * 1000
_MOST_BYTES = 64 * 2**20
"""Size of the longest MLmodel that is read, in bytes."""
_FETCHED_NOTE = "registered_model_meta"


@contextmanager
def fetched(tracking_uri: str, address: str) -> Iterator[Path]:
    """Yield the files at an address, local or downloaded from the tracking server."""
    from mlflow.artifacts import download_artifacts

    if is_database(tracking_uri):
        yield Path(download_artifacts(artifact_uri=address, tracking_uri=tracking_uri))
        return
    with scratch_path(user_temp_folder() / "models") as scratch:
        scratch.mkdir()
        yield Path(download_artifacts(artifact_uri=address, dst_path=str(scratch), tracking_uri=tracking_uri))


@contextmanager
def verified_folder(tracking_uri: str, version: ModelVersion) -> Iterator[Path]:
    """Yield the files of a version after they were compared with its digest.

    Raises `ArtifactError` if the files were changed, `AddressError` if the version has no registered model.
    """
    name = f"{version.name} version {version.version}"
    if (expected := version.tags.get(MODEL_DIGEST)) is None:
        raise AddressError(f"{name} has no tag {MODEL_DIGEST}, because no run of this pipeline registered it")
    with fetched(tracking_uri, version.source) as folder:
        if (actual := model_digest(folder)) != expected:
            raise ArtifactError(
                f"the registered model of {name} in {folder} is damaged or was swapped: expected {expected}, got "
                f"{actual}. Restore it from a backup, or promote another version"
            )
        yield folder


def model_digest(folder: Path) -> str:
    """sha256 of the names and bytes of a logged model's files, without the note that MLflow adds to a download."""
    files = {
        str(path.relative_to(folder)): file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != _FETCHED_NOTE
    }
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def verified_provenance(tracking_uri: str, version: ModelVersion) -> Provenance:
    """Provenance of a version. Its file is compared with its digest before it is parsed.

    Raises `AddressError` if the version has no provenance, `SignatureError` if the file was changed.
    """
    if (expected := version.tags.get(MLMODEL_DIGEST)) is not None:
        with fetched(tracking_uri, f"{version.address}/{MLMODEL}") as file:
            content = read_bounded(file)
        if (actual := hashlib.sha256(content).hexdigest()) != expected:
            raise SignatureError(
                f"{version.address} was changed after it was signed: its file {MLMODEL} has sha256 {actual}, and "
                f"{expected} was signed. Restore it from a backup, or promote another version"
            )
        if (provenance := parse_provenance(content, moved=True)) is not None:
            return provenance
    raise AddressError(
        f"{version.address} has no provenance, because no run of this pipeline registered it. To get a version with "
        "one, train with this address as policy.model"
    )


def read_bounded(file: Path) -> bytes:
    """Bytes of an `MLmodel`. Raises `ArtifactError` if it is longer than one that MLflow writes."""
    if file.stat().st_size > _MOST_BYTES:
        raise ArtifactError(f"{file} is damaged: more than {_MOST_BYTES >> 20} MiB")
    return file.read_bytes()


def parse_provenance(content: bytes, *, moved: bool = False) -> Provenance | None:
    """Provenance in the bytes of an `MLmodel`, or None if it has none.

    With `moved`, paths in a former place of this home become paths in its present place.
    """
    try:
        document = parse_yaml(content.decode(), place="MLmodel")
    except (ConfigError, UnicodeDecodeError) as error:
        raise ArtifactError(f"an MLmodel is damaged: {error}") from error
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(metadata, dict) or PROVENANCE not in metadata:
        return None
    try:
        provenance = Provenance.model_validate(metadata[PROVENANCE])
    except ValidationError as error:
        raise ArtifactError(f"an MLmodel is damaged: its provenance has {error.error_count()} faults") from error
    if not moved:
        return provenance
    digests = {
        f"{kind}{blank}{in_this_home(place)}": digest
        for name, digest in provenance.external_digests.items()
        for kind, blank, place in [name.partition(" ")]
    }
    return provenance.model_copy(update={"config": in_this_home(provenance.config), "external_digests": digests})


def sweep_abandoned(client: MlflowClient, run_id: str) -> None:
    """Remove logged models of a run that no version has, because a process was killed before it registered them.

    Another machine may still be registering its models, so they are removed only after a day. The caller has to hold
    the model's lock.
    """
    experiment = client.get_run(run_id).info.experiment_id
    registered = {version.model_id for version in all_versions(client, f"run_id = '{run_id}'")}
    condition = f"source_run_id = '{run_id}' and name = '{NAME}'"
    for model in list(all_pages(client.search_logged_models, [experiment], condition)):
        own = model.tags.get(HOST) == socket.gethostname()
        old = time.time() * 1000 - model.creation_timestamp > _ABANDONED_MS
        in_place = model.artifact_location.endswith(f"/models/{model.model_id}/artifacts")  # where MLflow puts it
        if model.model_id not in registered and in_place and (own or old):
            _remove(client, model)


def _remove(client: MlflowClient, model: LoggedModel) -> None:
    """Delete a logged model with its files, because MLflow itself keeps the files until `mlflow gc`."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    repository = get_artifact_repository(model.artifact_location, tracking_uri=client.tracking_uri)
    repository.delete_artifacts()
    client.delete_logged_model(model.model_id)
