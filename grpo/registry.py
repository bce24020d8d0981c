"""Models in MLflow: one version for each run that trained one, an alias for the one in service.

    version tags     run_key, policy, parent, checkpoint (uri and sha256), champion (the one it was judged against),
                     verdict, digests of scenarios, config and code
    aliases          candidate: the newest version; champion: the one in service

`run_key` names what a run is (its config, data and code): the same run registers the same version again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from grpo.artifacts import Artifact
from grpo.errors import RegistryError
from grpo.policy.transformers.adapters import merged
from grpo.policy.transformers.model import TransformersPolicy

if TYPE_CHECKING:
    from mlflow import MlflowClient

CANDIDATE, CHAMPION = "candidate", "champion"
_ADDRESS = re.compile(r"^models:/(?P<name>[\w.-]+)(?:@(?P<alias>[\w-]+)|/(?P<version>\d+))$")


class ModelVersion(BaseModel):
    """A registered version, as far as the pipeline needs it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: int
    run_id: str
    tags: dict[str, str]

    @property
    def checkpoint(self) -> Artifact:
        """The checkpoint that was registered."""
        return Artifact(uri=self.tags["checkpoint_uri"], sha256=self.tags["checkpoint_sha256"], kind="checkpoint")


class Registry:
    """The tracking server and the model registry at one address."""

    def __init__(self, tracking_uri: str, *, artifact_root: str | None = None) -> None:
        self.tracking_uri = tracking_uri
        self._artifact_root = artifact_root
        self._client: MlflowClient | None = None

    @property
    def client(self) -> MlflowClient:
        """MLflow's client; a local database is created by one process at a time."""
        if self._client is None:
            import mlflow
            from mlflow import MlflowClient

            mlflow.set_tracking_uri(self.tracking_uri)
            with _one_at_a_time(self.tracking_uri):
                client = MlflowClient(self.tracking_uri)
                client.search_experiments(max_results=1)
            self._client = client
        return self._client

    def experiment(self, name: str) -> str:
        """Id of the experiment, made on first use."""
        client = self.client
        with _one_at_a_time(self.tracking_uri):
            found = client.get_experiment_by_name(name)
            if found is not None:
                return str(found.experiment_id)
            location = f"{self._artifact_root}/{name}" if self._artifact_root else None
            return str(client.create_experiment(name, artifact_location=location))

    def champion(self, model: str) -> ModelVersion | None:
        """The version in service, if there is one."""
        from mlflow.exceptions import MlflowException

        try:
            found = self.client.get_model_version_by_alias(model, CHAMPION)
        except MlflowException:
            return None
        return _version(found)

    def at(self, address: str) -> ModelVersion:
        """The version at `models:/NAME@alias` or `models:/NAME/3`; `RegistryError` where there is none."""
        from mlflow.exceptions import MlflowException

        if (parts := _ADDRESS.match(address)) is None:
            raise RegistryError(f"{address!r} is no address of a model; write models:/NAME@champion or models:/NAME/3")
        try:
            if parts["alias"] is not None:
                return _version(self.client.get_model_version_by_alias(parts["name"], parts["alias"]))
            return _version(self.client.get_model_version(parts["name"], parts["version"]))
        except MlflowException as error:
            raise RegistryError(f"no model at {address} in the registry {self.tracking_uri}") from error

    def find(self, model: str, run_key: str) -> ModelVersion | None:
        """The version that this very run has registered before, if it has."""
        found = self.client.search_model_versions(f"name = '{model}' and tags.run_key = '{run_key}'")
        return _version(found[0]) if found else None

    def open_run(self, experiment: str, run_name: str, *, run_key: str, params: Mapping[str, str]) -> str:
        """Id of this run's record: the one it left unfinished, or a new one with its parameters."""
        experiment_id = self.experiment(experiment)
        found = self.client.search_runs([experiment_id], f"tags.run_key = '{run_key}'", max_results=1)
        if found:
            return str(found[0].info.run_id)
        run = self.client.create_run(experiment_id, run_name=run_name, tags={"run_key": run_key})
        from mlflow.entities import Param

        self.client.log_batch(run.info.run_id, params=[Param(key, value[:6000]) for key, value in params.items()])
        return str(run.info.run_id)

    def log_metrics(self, run_id: str, series: Mapping[str, list[float]]) -> None:
        """Log one value an iteration for each name."""
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(name, value, now, step) for name, values in series.items() for step, value in enumerate(values)
        ]
        for start in range(0, len(metrics), 1000):
            self.client.log_batch(run_id, metrics=metrics[start : start + 1000])

    def log_files(self, run_id: str, files: list[Path]) -> None:
        """Attach files and folders to the run."""
        for path in files:
            if path.is_dir():
                self.client.log_artifacts(run_id, str(path), path.name)
            else:
                self.client.log_artifact(run_id, str(path))

    def close_run(self, run_id: str, status: str) -> None:
        """Mark the run FINISHED or FAILED."""
        self.client.set_terminated(run_id, status)

    def register(self, model: str, run_id: str, policy: TransformersPolicy, *, tags: Mapping[str, str]) -> ModelVersion:
        """Log the policy as a chat model with its signature, register it, and let `candidate` point at it.

        The same `run_key` gives the version that is already there.
        """
        known = self.find(model, tags["run_key"])
        if known is not None:
            self.client.set_registered_model_alias(model, CANDIDATE, str(known.version))
            return known
        import mlflow
        import mlflow.transformers

        mlflow.set_tracking_uri(self.tracking_uri)
        logging.getLogger("mlflow.transformers").setLevel(logging.ERROR)  # misses the card of a model that no hub has
        with mlflow.start_run(run_id=run_id):
            info = mlflow.transformers.log_model(
                transformers_model={"model": merged(policy.model), "tokenizer": policy.tokenizer},
                name="policy",
                task="llm/v1/chat",
                pip_requirements=["torch", "transformers"],
            )
        if not self.client.search_registered_models(f"name = '{model}'"):
            self.client.create_registered_model(model)
        found = self.client.create_model_version(
            model, source=info.model_uri, run_id=run_id, tags=dict(tags), model_id=info.model_id
        )
        self.client.set_registered_model_alias(model, CANDIDATE, found.version)
        return _version(self.client.get_model_version(model, found.version))

    def promote(self, version: ModelVersion) -> None:
        """Let the alias `champion` point at this version."""
        if version.tags.get("verdict") != "promote":
            raise RegistryError(
                f"{version.name} version {version.version} was judged {version.tags.get('verdict')!r}; "
                "only a version that passed its gates may serve"
            )
        self.client.set_registered_model_alias(version.name, CHAMPION, str(version.version))


def _version(found: object) -> ModelVersion:
    return ModelVersion(
        name=str(found.name),  # type: ignore[attr-defined]
        version=int(found.version),  # type: ignore[attr-defined]
        run_id=str(found.run_id),  # type: ignore[attr-defined]
        tags=dict(found.tags),  # type: ignore[attr-defined]
    )


@contextmanager
def _one_at_a_time(tracking_uri: str) -> Iterator[None]:
    """Guard the first use of a SQLite store: two processes that create its tables at once break it."""
    if not tracking_uri.startswith("sqlite:///"):
        yield
        return
    lock = Path(tracking_uri.removeprefix("sqlite:///")).with_suffix(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
