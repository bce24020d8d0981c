"""The tracking server and the model registry at one address: runs, versions, and who serves."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock
from pydantic import BaseModel, ConfigDict

from grpo.artifacts import Artifact, ArtifactStore, user_temp_folder
from grpo.errors import AddressError, ArtifactError, RegistryError
from grpo.registry.promotions import CANDIDATE, CHAMPION, PromotionLog, is_absent, missing_champion
from grpo.registry.provenance import PROVENANCE, Provenance
from grpo.storage.databases import exclusive, is_database, make_tracking
from grpo.storage.files import file_digest
from grpo.storage.locks import file_lock, scratch_path

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion as MlflowVersion

    from grpo.policy.transformers.model import TransformersPolicy

MODEL_DIGEST = "model_sha256"
"""Tag of a version: digest of the files of its registered model."""
_FETCHED_NOTE = "registered_model_meta"
_ADDRESS = re.compile(r"^models:/(?P<name>\w[\w.-]*)(@(?P<alias>[\w.-]+)|/(?P<version>[0-9]{1,9}))$")
"""Of a version as databases hold it: nine digits."""


class ModelVersion(BaseModel):
    """A registered version, as far as the pipeline needs it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: int
    run_id: str
    tags: dict[str, str]

    @property
    def checkpoint(self) -> Artifact:
        """The checkpoint that was registered; `AddressError` for a version that no run registered."""
        try:
            return Artifact(uri=self.tags["checkpoint_uri"], sha256=self.tags["checkpoint_sha256"], kind="checkpoint")
        except KeyError as error:
            raise AddressError(
                f"{self.name} version {self.version} has no tag {error}: no run of this pipeline registered it"
            ) from error


class Registry:
    """The tracking server and the model registry at one address.

    What MLflow raises while it cannot be asked is raised as it is; what is not there is None or a `RegistryError`.
    """

    def __init__(
        self, tracking_uri: str, *, artifact_root: str | None = None, client: MlflowClient | None = None
    ) -> None:
        self.tracking_uri = tracking_uri
        self._artifact_root = artifact_root
        self._client = client

    @property
    def client(self) -> MlflowClient:
        """MLflow's client; the tables of a database are made by one process at a time."""
        if self._client is None:
            import mlflow
            from mlflow import MlflowClient

            mlflow.set_tracking_uri(self.tracking_uri)
            with exclusive(self.tracking_uri):
                make_tracking(self.tracking_uri)
                client = MlflowClient(self.tracking_uri)
                client.search_experiments(max_results=1)
            self._client = client
        return self._client

    def experiment(self, name: str) -> str:
        """Id of the experiment, made on first use."""
        client = self.client
        with exclusive(self.tracking_uri):
            found = client.get_experiment_by_name(name)
            if found is not None:
                return str(found.experiment_id)
            location = f"{self._artifact_root}/{name}" if self._artifact_root else None
            with _made_by_another():
                return str(client.create_experiment(name, artifact_location=location))
            return str(client.get_experiment_by_name(name).experiment_id)

    def champion(self, model: str) -> ModelVersion | None:
        """The version in service, None while none has ever been.

        Raises `RegistryError` where one has been and its version or alias was deleted: who took that for a new model
        would let a worse one in.
        """
        if (found := self._by_alias(model, CHAMPION)) is not None:
            return found
        try:
            state = self.promotions(model).state()
        except AddressError:
            return None
        if state.history and state.champion is None:
            raise RegistryError(missing_champion(model))
        return None

    def resolve(self, address: str) -> ModelVersion:
        """The version at `models:/NAME@alias` or `models:/NAME/3`; `AddressError` where there is none."""
        from mlflow.exceptions import MlflowException

        if (parts := _ADDRESS.match(address)) is None:
            raise AddressError(
                f"{address!r} is not the address of a model; write models:/NAME@champion or models:/NAME/3"
            )
        name, alias, number = parts["name"], parts["alias"], parts["version"]
        found: ModelVersion | None
        if alias is not None:
            found = self._by_alias(name, alias)
        else:
            try:
                found = _version(self.client.get_model_version(name, number))
            except MlflowException as error:
                if not is_absent(error):
                    raise
                found = None
        if found is None:
            raise AddressError(f"no model at {address} in the registry {self.tracking_uri}")
        return found

    def find(self, model: str, run_key: str) -> ModelVersion | None:
        """The version that this very run has registered before, if it has."""
        found = self.client.search_model_versions(f"name = '{model}' and tags.run_key = '{run_key}'")
        return _version(found[0]) if found else None

    def versions(self, model: str) -> list[ModelVersion]:
        """Every version of a model, the first one first."""
        found = self.client.search_model_versions(f"name = '{model}'", max_results=10_000)
        return sorted(map(_version, found), key=lambda one: one.version)

    def checkpoints(self, store: str) -> list[Artifact]:
        """Checkpoints in a store that registered versions need: their own, and those they were judged against."""
        pairs = [("checkpoint_uri", "checkpoint_sha256"), ("champion_uri", "champion_sha256")]
        every = self.client.search_model_versions(max_results=10_000)
        needed = {
            (version.tags[uri], version.tags[digest])
            for version in every
            for uri, digest in pairs
            if uri in version.tags and digest in version.tags
        }
        place = ArtifactStore(store).uri + "/"
        return [
            Artifact(uri=uri, sha256=digest, kind="checkpoint")
            for uri, digest in sorted(needed)
            if uri.startswith(place)
        ]

    @contextmanager
    def model_folder(self, version: ModelVersion) -> Iterator[Path]:
        """The folder of a registered model, verified by its digest; what was fetched for it goes when the block ends.

        Raises `ArtifactError` for a model that is not what was registered, `AddressError` for one without a digest.
        """
        name = f"{version.name} version {version.version}"
        if (expected := version.tags.get(MODEL_DIGEST)) is None:
            raise AddressError(f"{name} has no tag {MODEL_DIGEST}: no run of this pipeline registered it")
        with self._fetched(self.client.get_model_version(version.name, str(version.version)).source) as folder:
            if (now := model_digest(folder)) != expected:
                raise ArtifactError(
                    f"the registered model of {name} in {folder} is damaged: expected {expected}, it is {now}; "
                    "restore it from a backup, or let another version serve"
                )
            yield folder

    def verify(self, version: ModelVersion) -> None:
        """Raise `ArtifactError` unless the registered model is what its digest says."""
        with self.model_folder(version):
            pass

    @contextmanager
    def _fetched(self, address: str) -> Iterator[Path]:
        """The files of a logged model: where they lie on this machine, or fetched from the tracking server."""
        from mlflow.artifacts import download_artifacts

        if is_database(self.tracking_uri):
            yield Path(download_artifacts(artifact_uri=address, tracking_uri=self.tracking_uri))
            return
        with scratch_path(user_temp_folder() / "models") as scratch:
            scratch.mkdir()
            yield Path(download_artifacts(artifact_uri=address, dst_path=str(scratch), tracking_uri=self.tracking_uri))

    def aliases(self, version: ModelVersion) -> list[str]:
        """Names that point at a version."""
        model = self.client.get_registered_model(version.name)
        return sorted(name for name, number in model.aliases.items() if int(number) == version.version)

    def provenance(self, version: ModelVersion) -> Provenance:
        """What a version was made from; `AddressError` for one that something else registered."""
        import mlflow
        from mlflow.models import get_model_info

        mlflow.set_tracking_uri(self.tracking_uri)
        address = f"models:/{version.name}/{version.version}"
        found = (get_model_info(address).metadata or {}).get(PROVENANCE)
        if found is None:
            raise AddressError(
                f"{address} says nothing of what it was made from: no run of this pipeline registered it"
            )
        return Provenance.model_validate(found)

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

    def register(
        self,
        model: str,
        run_id: str,
        policy: TransformersPolicy,
        *,
        tags: Mapping[str, str],
        provenance: Provenance,
    ) -> ModelVersion:
        """Log the policy as a chat model, register it, and let `candidate` point at the newest version.

        The same `run_key` gives the version that is already there. A version appears in one transaction, with its
        tags, when its files are whole: whoever dies before leaves none, whoever dies after is found again.
        """
        import mlflow

        from grpo.registry.chat_model import log_chat_model

        mlflow.set_tracking_uri(self.tracking_uri)
        with self._exclusive(model):
            version = self.find(model, tags["run_key"])
            if version is None:
                address, model_id = log_chat_model(policy, run_id, provenance)
                with self._fetched(address) as folder:
                    described = {**tags, MODEL_DIGEST: model_digest(folder)}
                with self._named(model):
                    version = _version(
                        self.client.create_model_version(
                            model, source=address, run_id=run_id, tags=described, model_id=model_id
                        )
                    )
            if self.versions(model)[-1].version == version.version:
                self.client.set_registered_model_alias(model, CANDIDATE, str(version.version))
            return version

    @contextmanager
    def _named(self, model: str) -> Iterator[None]:
        """A registered model of this name while its first version is made; without that, no name is left either."""
        made = False
        with _made_by_another():
            self.client.create_registered_model(model)
            made = True
        try:
            yield
        except BaseException:  # cancelled, too
            if made and not self.versions(model):
                self.client.delete_registered_model(model)
            raise

    def promotions(self, model: str) -> PromotionLog:
        """Which versions of a model have served, and the next one."""
        return PromotionLog(self.client, model, self._exclusive(model))

    def _by_alias(self, model: str, alias: str) -> ModelVersion | None:
        from mlflow.exceptions import MlflowException

        try:
            return _version(self.client.get_model_version_by_alias(model, alias))
        except MlflowException as error:
            if is_absent(error):
                return None
            raise

    def _exclusive(self, model: str) -> FileLock:
        digest = hashlib.sha256(f"{self.tracking_uri} {model}".encode()).hexdigest()[:20]
        return file_lock(_lock_folder(self.tracking_uri) / f"{digest}.lock")


def _version(found: MlflowVersion) -> ModelVersion:
    return ModelVersion(
        name=str(found.name), version=int(found.version), run_id=str(found.run_id), tags=dict(found.tags)
    )


def model_digest(folder: Path) -> str:
    """sha256 of the names and bytes of a logged model's files, without the note that MLflow adds to a fetched copy."""
    files = {
        str(path.relative_to(folder)): file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != _FETCHED_NOTE
    }
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _lock_folder(tracking_uri: str) -> Path:
    """Beside a local database, else in this user's temporary folder."""
    if tracking_uri.startswith("sqlite:///"):
        return Path(tracking_uri.removeprefix("sqlite:///")).parent
    return user_temp_folder() / "locks"


@contextmanager
def _made_by_another() -> Iterator[None]:
    """Pass over what is there already: behind a server another machine may make it in the same moment."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
