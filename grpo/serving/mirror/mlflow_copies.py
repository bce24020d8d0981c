"""Copies of served conversations in MLflow: reports of runs, and the traces of a mirror with their assessments."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import httpx

from grpo.errors import DataError, RegistryError
from grpo.http_client import get
from grpo.log.copies import ErasedCopy, Mentions
from grpo.policy.weights.registered import fault_of
from grpo.policy.weights.registry_pages import all_pages, all_versions
from grpo.registry.erased_data import is_tuned_on
from grpo.registry.store import Registry, verified
from grpo.serving.mirror.trace_store import TraceStore
from grpo.serving.mirror.traces import CONVERSATION_TAG
from grpo.storage.credentials import masked
from grpo.storage.databases import is_database
from grpo.storage.home import home

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_PROBE_S = 5.0
_FILES = ("report.json", "report.html", "report.png", "retraining.json", "data_docs")


@contextmanager
def mlflow_errors() -> Iterator[None]:
    """Turn an error of MLflow into a `RegistryError`. MLflow is not imported for this."""
    try:
        yield
    except Exception as error:
        loaded = sys.modules.get("mlflow.exceptions")
        if loaded is not None and isinstance(error, getattr(loaded, "MlflowException", ())):
            raise RegistryError(f"MLflow refuses: {' '.join(str(error).split())[:300]}") from error
        raise


def tracking_address(folder: Path) -> str | None:
    """Address in MLFLOW_TRACKING_URI, else of the home's database. None if its database file does not exist."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    database = Path(given.removeprefix("sqlite:///")) if given.startswith("sqlite:///") else folder / "mlflow.db"
    if given and not given.startswith("sqlite:///"):
        return given
    return f"sqlite:///{database}" if database.is_file() else None


def erase_from_mlflow(tracking_uri: str, mentions: Mentions, conversations: Collection[str]) -> Iterator[ErasedCopy]:
    """Erase the files of runs that name a conversation, and the traces of the conversations with these digests.

    Errors of MLflow propagate.
    """
    from mlflow.entities import ViewType

    client = Registry(tracking_uri).client
    for experiment in all_pages(client.search_experiments, view_type=ViewType.ALL):
        traces = TraceStore(tracking_uri, experiment.name)
        traces.experiment_id = experiment.experiment_id  # also a deleted experiment, because it can be restored
        for digest in conversations:
            count = traces.delete(f"tag.`{CONVERSATION_TAG}` = '{digest}'")
            yield from [ErasedCopy(place="mlflow/trace")] * count
        for run in all_pages(client.search_runs, [experiment.experiment_id], run_view_type=ViewType.ALL):
            yield from _erase_from_run(client, run, mentions)


def registered_stores(tracking_uri: str) -> tuple[set[str], list[str]]:
    """Addresses of the stores with the checkpoints of registered versions, and the versions without a valid signature.

    A version that this home has not signed could name any store, so its store is not opened.
    Raises `ConnectionError` if the tracking server does not answer.
    """
    if not is_database(tracking_uri):
        try:
            get(f"{tracking_uri.rstrip('/')}/health", seconds=_PROBE_S).raise_for_status()
        except httpx.HTTPError as error:
            raise ConnectionError(f"MLflow at {masked(tracking_uri)} does not answer: {error}") from error
    versions = list(all_versions(Registry(tracking_uri).client))
    uris = [version.tags["checkpoint_uri"] for version in verified(versions) if "checkpoint_uri" in version.tags]
    skipped = sorted(f"{item.name}/{item.version}" for item in versions if fault_of(item) is not None)
    return {uri.rsplit("/", 2)[0] for uri in uris if uri.count("/") > 2}, skipped


def versions_trained_on(tracking_uri: str, artifacts: Collection[str]) -> list[str]:
    """Signed versions, e.g. `support-desk/3`, that were trained on one of the artifacts with these digests.

    An artifact is a table of scenarios, or a file of demonstrations or pairs.
    """
    versions = verified(all_versions(Registry(tracking_uri).client))
    return sorted(
        f"{item.name}/{item.version}"
        for item in versions
        if item.tags.get("scenarios") in artifacts or is_tuned_on(item.tags, artifacts)
    )


def _erase_from_run(client: MlflowClient, run: Run, mentions: Mentions) -> Iterator[ErasedCopy]:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    place = _place_of_files(client.tracking_uri, run.info.artifact_uri)
    repository = get_artifact_repository(place, tracking_uri=client.tracking_uri)
    names = {Path(item.path).name for item in repository.list_artifacts()} & set(_FILES)
    if not names:
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(repository.download_artifacts(name, folder)) for name in sorted(names)]
        if not any(_is_named(path, mentions) for path in paths):
            return
    for name in sorted(names):
        repository.delete_artifacts(name)
        yield ErasedCopy(place=f"mlflow/{name}")


def _place_of_files(tracking_uri: str, artifact_uri: str) -> str:
    """Address of a run's files. If the home's server proxies them, it is their folder, so that no server is needed."""
    place = urlsplit(artifact_uri)
    if place.scheme != "mlflow-artifacts" or tracking_uri != f"sqlite:///{home() / 'mlflow.db'}":
        return artifact_uri
    folder = home() / "mlartifacts"
    files = (folder / unquote(place.path).strip("/")).resolve()
    if not files.is_relative_to(folder.resolve()):
        raise RegistryError(f"a run keeps its files at {artifact_uri}, which is not below {folder}. Delete that run")
    return files.as_uri()


def _is_named(path: Path, mentions: Mentions) -> bool:
    """True if a file of a run names a conversation, or is damaged, because then it could name any."""
    try:
        return mentions.in_artifact(path)
    except DataError:
        return True
