"""MLflow client for runs, model versions and aliases of one tracking server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from filelock import FileLock

from grpo.artifacts import Artifact, ArtifactStore, user_temp_folder
from grpo.errors import AddressError, ArtifactError, RegistryError
from grpo.policy.weights.registered import (
    ModelVersion,
    as_version,
    open_client,
    resolve_version,
    version_by_alias,
)
from grpo.registry.markdown import escaped
from grpo.registry.model_card import model_description, version_card
from grpo.registry.promotions import (
    CANDIDATE,
    CHAMPION,
    Actor,
    ChampionChange,
    PlannedChange,
    PromotionLog,
    missing_champion,
)
from grpo.registry.provenance import PROVENANCE, Provenance
from grpo.storage.databases import exclusive, is_database
from grpo.storage.files import file_digest
from grpo.storage.locks import file_lock, scratch_path

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from grpo.policy.transformers.model import TransformersPolicy

MODEL_DIGEST = "model_sha256"
"""Tag of a version: digest of the files of its registered model."""
HELDOUT = "heldout"
"""Tag of a version: its held-out result as text, see `HeldOut`."""
CODE = "code"
"""Folder of the user's sources among the files of a run."""
_FETCHED_NOTE = "registered_model_meta"


class Registry:
    """Runs and registered models of one tracking server.

    Connection errors of MLflow propagate; a missing object is None or a `RegistryError`.
    """

    def __init__(
        self, tracking_uri: str, *, artifact_root: str | None = None, client: MlflowClient | None = None
    ) -> None:
        self.tracking_uri = tracking_uri
        self._artifact_root = artifact_root
        self._client = client

    @property
    def client(self) -> MlflowClient:
        """MLflow's client; one process at a time creates the tables of a database."""
        if self._client is None:
            self._client = open_client(self.tracking_uri)
        return self._client

    def experiment(self, name: str) -> str:
        """Id of the experiment, created on first use."""
        client = self.client
        with exclusive(self.tracking_uri):
            if (experiment := client.get_experiment_by_name(name)) is not None:
                return str(experiment.experiment_id)
            location = f"{self._artifact_root}/{name}" if self._artifact_root else None
            with _ignore_existing():
                return str(client.create_experiment(name, artifact_location=location))
            return str(client.get_experiment_by_name(name).experiment_id)

    def champion(self, model: str) -> ModelVersion | None:
        """Version in service; None before the first promotion.

        Raises `RegistryError` for a deleted champion: a comparison with the base instead could promote a worse version.
        """
        if (version := version_by_alias(self.client, model, CHAMPION)) is not None:
            return version
        try:
            state = self.promotions(model).state()
        except AddressError:
            return None
        if state.history and state.champion is None:
            raise RegistryError(missing_champion(model))
        return None

    def resolve(self, address: str) -> ModelVersion:
        """Return the version at `models:/NAME@alias` or `models:/NAME/3`; `AddressError` for a missing one."""
        return resolve_version(lambda: self.client, address)

    def find(self, model: str, run_key: str) -> ModelVersion | None:
        """Return the version that the run with this key registered, if any."""
        versions = self.client.search_model_versions(f"name = '{model}' and tags.run_key = '{run_key}'")
        return as_version(versions[0]) if versions else None

    def versions(self, model: str) -> list[ModelVersion]:
        """All versions of a model, oldest first."""
        versions = self.client.search_model_versions(f"name = '{model}'", max_results=10_000)
        return sorted(map(as_version, versions), key=lambda version: version.version)

    def checkpoints(self, store: str) -> list[Artifact]:
        """Checkpoints in a store that registered versions reference: their own and those of their champions."""
        pairs = [("checkpoint_uri", "checkpoint_sha256"), ("champion_uri", "champion_sha256")]
        referenced = {
            (version.tags[uri], version.tags[digest])
            for version in self.client.search_model_versions(max_results=10_000)
            for uri, digest in pairs
            if uri in version.tags and digest in version.tags
        }
        root = ArtifactStore(store).uri + "/"
        return [
            Artifact(uri=uri, sha256=digest, kind="checkpoint")
            for uri, digest in sorted(referenced)
            if uri.startswith(root)
        ]

    @contextmanager
    def model_folder(self, version: ModelVersion) -> Iterator[Path]:
        """Yield the folder of a registered model, verified by its digest; a download is removed afterwards.

        Raises `ArtifactError` for a model that differs from its digest, `AddressError` for one without a digest.
        """
        name = f"{version.name} version {version.version}"
        if (expected := version.tags.get(MODEL_DIGEST)) is None:
            raise AddressError(f"{name} has no tag {MODEL_DIGEST}: no run of this pipeline registered it")
        with self._fetched(self.client.get_model_version(version.name, str(version.version)).source) as folder:
            if (actual := model_digest(folder)) != expected:
                raise ArtifactError(
                    f"the registered model of {name} in {folder} is damaged: expected {expected}, got {actual}; "
                    "restore it from a backup, or promote another version"
                )
            yield folder

    def verify(self, version: ModelVersion) -> None:
        """Raise `ArtifactError` unless the registered model matches its digest."""
        with self.model_folder(version):
            pass

    @contextmanager
    def _fetched(self, address: str) -> Iterator[Path]:
        """Yield the files of a logged model, local or downloaded from the tracking server."""
        from mlflow.artifacts import download_artifacts

        if is_database(self.tracking_uri):
            yield Path(download_artifacts(artifact_uri=address, tracking_uri=self.tracking_uri))
            return
        with scratch_path(user_temp_folder() / "models") as scratch:
            scratch.mkdir()
            yield Path(download_artifacts(artifact_uri=address, dst_path=str(scratch), tracking_uri=self.tracking_uri))

    def aliases(self, version: ModelVersion) -> list[str]:
        """Aliases of a version."""
        model = self.client.get_registered_model(version.name)
        return sorted(name for name, number in model.aliases.items() if int(number) == version.version)

    def provenance(self, version: ModelVersion) -> Provenance:
        """Provenance of a version; `AddressError` for one without it."""
        import mlflow
        from mlflow.models import get_model_info

        mlflow.set_tracking_uri(self.tracking_uri)
        address = f"models:/{version.name}/{version.version}"
        provenance = (get_model_info(address).metadata or {}).get(PROVENANCE)
        if provenance is None:
            raise AddressError(f"{address} has no provenance: no run of this pipeline registered it")
        return Provenance.model_validate(provenance)

    def open_run(self, experiment: str, run_name: str, *, run_key: str, params: Mapping[str, str]) -> str:
        """Return the id of the MLflow run with this key, created with its parameters on first use."""
        experiment_id = self.experiment(experiment)
        if runs := self.client.search_runs([experiment_id], f"tags.run_key = '{run_key}'", max_results=1):
            return str(runs[0].info.run_id)
        run = self.client.create_run(experiment_id, run_name=run_name, tags={"run_key": run_key})
        from mlflow.entities import Param

        self.client.log_batch(run.info.run_id, params=[Param(key, value[:6000]) for key, value in params.items()])
        return str(run.info.run_id)

    def log_metrics(self, run_id: str, series: Mapping[str, Sequence[float | None]]) -> None:
        """Log the values of each name by iteration, without those that are None."""
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(name, value, now, step)
            for name, values in series.items()
            for step, value in enumerate(values)
            if value is not None
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

    def log_code(self, run_id: str, files: Mapping[str, Path]) -> None:
        """Attach source files to the run, in its folder `code`, by their path below an import folder."""
        for name, path in files.items():
            self.client.log_artifact(run_id, str(path), str(PurePosixPath(CODE, name).parent))

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
        """Log the policy as a chat model and register it with its card; the alias `candidate` names the newest version.

        A second registration with the same `run_key` returns the existing version. A version is created in one
        transaction with its tags after its files are complete, so a killed process leaves none or a complete one.
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
                if provenance.heldout is not None:
                    described[HELDOUT] = str(provenance.heldout)
                with self._named(model):
                    version = as_version(
                        self.client.create_model_version(
                            model, source=address, run_id=run_id, tags=described, model_id=model_id
                        )
                    )
            if self.versions(model)[-1].version == version.version:
                self.client.set_registered_model_alias(model, CANDIDATE, str(version.version))
            self._write_card(version, provenance)
            self._describe(model)
            return version

    def _write_card(self, version: ModelVersion, provenance: Provenance) -> None:
        """Write the description of a version, which a process that was killed may have left out."""
        if self.client.get_model_version(version.name, str(version.version)).description:
            return
        info = self.client.get_run(version.run_id).info
        page = f"#/experiments/{info.experiment_id}/runs/{info.run_id}"
        run = f"[{escaped(info.run_name or info.run_id)}]({page}), with its [report]({page}/artifacts/report.html)"
        card = version_card(
            version.name, provenance, version.tags.get("verdict", "no verdict"), run=run, address=version.address
        )
        self.client.update_model_version(version.name, str(version.version), description=card)

    def _describe(self, model: str) -> None:
        """Write the description of a model: its champion, and the card of that version or of the newest one."""
        state, newest = self.promotions(model).state(), self.versions(model)[-1].version
        shown = newest if state.champion is None else state.champion
        text = model_description(
            model,
            champion=state.champion,
            change=state.history[-1] if state.history else None,
            newest=newest,
            card=self.client.get_model_version(model, str(shown)).description or "",
        )
        if self.client.get_registered_model(model).description != text:
            self.client.update_registered_model(model, text)

    @contextmanager
    def _named(self, model: str) -> Iterator[None]:
        """Create the registered model if needed; remove it again when its first version fails."""
        made = False
        with _ignore_existing():
            self.client.create_registered_model(model)
            made = True
        try:
            yield
        except BaseException:  # also on cancellation
            if made and not self.versions(model):
                self.client.delete_registered_model(model)
            raise

    def promotions(self, model: str) -> PromotionLog:
        """Promotions and rollbacks of a model."""
        return PromotionLog(self.client, model, self._exclusive(model))

    def promote(
        self, model: str, version: int, *, reason: str, by: Actor, force: bool = False
    ) -> ChampionChange | None:
        """Make a verified version champion; None where it is champion already. Raises as `PromotionLog.promote`."""
        checks = self.provenance(self._version(model, version)).checks
        change = self.promotions(model).promote(
            version, reason=reason, by=by, force=force, checks=checks, verify=self._verifier(model)
        )
        self.describe(model)
        return change

    def rollback(self, model: str, *, reason: str, by: Actor) -> ChampionChange:
        """Make the version before the champion champion again. Raises as `PromotionLog.rollback`."""
        change = self.promotions(model).rollback(reason=reason, by=by, verify=self._verifier(model))
        self.describe(model)
        return change

    def plan_promotion(self, model: str, version: int, *, reason: str, by: Actor) -> PlannedChange:
        """Plan of `promote`, whose files are verified; writes nothing. Raises `ArtifactError` for a damaged version."""
        checks = self.provenance(self._version(model, version)).checks
        self._verifier(model)(version)
        return self.promotions(model).plan_promotion(version, reason=reason, by=by, checks=checks)

    def plan_rollback(self, model: str, *, reason: str, by: Actor) -> PlannedChange:
        """Plan of `rollback`, as `plan_promotion`."""
        plan = self.promotions(model).plan_rollback(reason=reason, by=by)
        assert plan.change is not None
        self._verifier(model)(plan.change.champion)
        return plan

    def describe(self, model: str) -> None:
        """Write the description of a model again, as after each promotion and rollback."""
        with self._exclusive(model):
            self._describe(model)

    def _verifier(self, model: str) -> Callable[[int], None]:
        """Check of a version's files before it becomes champion."""
        return lambda version: self.verify(self._version(model, version))

    def _version(self, model: str, version: int) -> ModelVersion:
        return self.resolve(f"models:/{model}/{version}")

    def _exclusive(self, model: str) -> FileLock:
        digest = hashlib.sha256(f"{self.tracking_uri} {model}".encode()).hexdigest()[:20]
        return file_lock(_lock_folder(self.tracking_uri) / f"{digest}.lock")


def model_digest(folder: Path) -> str:
    """sha256 of the names and bytes of a logged model's files, without the note that MLflow adds to a download."""
    files = {
        str(path.relative_to(folder)): file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != _FETCHED_NOTE
    }
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _lock_folder(tracking_uri: str) -> Path:
    """Folder of the database, or this user's temporary folder for a server."""
    if tracking_uri.startswith("sqlite:///"):
        return Path(tracking_uri.removeprefix("sqlite:///")).parent
    return user_temp_folder() / "locks"


@contextmanager
def _ignore_existing() -> Iterator[None]:
    """Suppress the error for an object that another machine created at the same time."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
