"""MLflow client for runs, model versions and aliases of one tracking server."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from filelock import FileLock

from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import AddressError, RegistryError, SignatureError
from grpo.policy.weights.promotion_records import CANDIDATE, Actor, ChampionChange
from grpo.policy.weights.registered import (
    HELDOUT,
    MLMODEL_DIGEST,
    MODEL_DIGEST,
    ModelVersion,
    as_version,
    open_client,
    promoted_champion,
    resolve_version,
    signed_tags,
    version_by_number,
)
from grpo.policy.weights.registry_pages import all_versions
from grpo.registry.logged_models import (
    MLMODEL,
    fetched,
    model_digest,
    parse_provenance,
    read_bounded,
    sweep_abandoned,
    verified_folder,
    verified_provenance,
)
from grpo.registry.markdown import escaped
from grpo.registry.model_card import model_description, version_card
from grpo.registry.promotions import PlannedChange, PromotionLog
from grpo.registry.provenance import Provenance
from grpo.storage.databases import exclusive
from grpo.storage.fetched import user_temp_folder
from grpo.storage.locks import file_lock

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion as MlflowVersion

    from grpo.policy.transformers.model import TransformersPolicy

logger = logging.getLogger(__name__)
CODE = "code"
"""Folder of the user's sources among the files of a run."""


class Registry:
    """Runs and registered models of one tracking server.

    Connection errors of MLflow propagate. For a missing object a method returns None or raises `RegistryError`.
    """

    def __init__(
        self, tracking_uri: str, *, artifact_root: str | None = None, client: MlflowClient | None = None
    ) -> None:
        self.tracking_uri = tracking_uri
        self._artifact_root = artifact_root
        self._client = client

    @property
    def client(self) -> MlflowClient:
        """MLflow's client. If the tables of a database have to be created, one process at a time does so."""
        if self._client is None:
            self._client = open_client(self.tracking_uri)
        return self._client

    def experiment(self, name: str) -> str:
        """Id of the experiment, created on first use. Raises like `known_experiment`."""
        client = self.client
        with exclusive(self.tracking_uri):
            if (known := self.known_experiment(name)) is not None:
                return known
            location = f"{self._artifact_root}/{name}" if self._artifact_root else None
            if self._artifact_root is not None and self._artifact_root.startswith("file://"):
                Path(self._artifact_root.removeprefix("file://")).mkdir(mode=0o700, parents=True, exist_ok=True)
            with _ignore_existing():
                return str(client.create_experiment(name, artifact_location=location))
            return str(client.get_experiment_by_name(name).experiment_id)

    def known_experiment(self, name: str) -> str | None:
        """Id of an experiment, or None if there is none. Raises `RegistryError` if it was deleted."""
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            return None
        if experiment.lifecycle_stage != "active":
            raise RegistryError(
                f"experiment {name} was deleted in MLflow, and takes no runs. Restore it with mlflow experiments "
                f"restore --experiment-id {experiment.experiment_id}, or set registry.experiment to another name"
            )
        return str(experiment.experiment_id)

    def champion(self, model: str, *, follow_alias: bool = False) -> ModelVersion | None:
        """Version in service, or None before the first promotion.

        It is the version that was promoted, or with `follow_alias` the one that the alias `champion` names. A warning
        is logged if the two differ. Raises `RegistryError` if the champion was deleted, because a comparison with the
        base instead could promote a worse version, and `SignatureError` if the champion is not believed.
        """
        try:
            state = self.promotions(model).state()
        except AddressError:
            return None
        if state.moved is not None:
            logger.warning("%s", state.moved)
        if follow_alias and state.alias is not None:
            return version_by_number(self.client, model, state.alias)
        return promoted_champion(self.client, state)

    def resolve(self, address: str, *, follow_alias: bool = False) -> ModelVersion:
        """Version at `models:/NAME@alias` or `models:/NAME/3`. Raises like `resolve_version`."""
        return resolve_version(self.tracking_uri, lambda: self.client, address, follow_alias=follow_alias)

    def find(self, model: str, run_key: str) -> ModelVersion | None:
        """Return the version that the run with this key registered, if any."""
        return next(verified(all_versions(self.client, f"name = '{model}' and tags.run_key = '{run_key}'")), None)

    def versions(self, model: str) -> list[ModelVersion]:
        """Versions of a model that are believed, oldest first."""
        return sorted(verified(self.listed(model)), key=lambda version: version.version)

    def listed(self, model: str) -> list[MlflowVersion]:
        """All versions of a model as MLflow lists them. Nothing about them is verified."""
        return list(all_versions(self.client, f"name = '{model}'"))

    def checkpoints(self, store: str) -> list[Artifact]:
        """Checkpoints in a store that registered versions reference, for themselves and for their champions."""
        pairs = [("checkpoint_uri", "checkpoint_sha256"), ("champion_uri", "champion_sha256")]
        referenced = {
            (version.tags[uri], version.tags[digest])
            for version in verified(all_versions(self.client))
            for uri, digest in pairs
            if uri in version.tags and not (version.tags.get(digest) or "none").strip("0123456789abcdef")
        }
        artifacts = ArtifactStore(store)
        named = [Artifact(uri=uri, sha256=digest, kind="checkpoint") for uri, digest in sorted(referenced)]
        own = [artifacts.own(artifact) for artifact in named if artifacts.has(artifact)]
        return [*own, *(artifact for artifact in named if artifact.uri.startswith(f"{artifacts.uri}/"))]

    def model_folder(self, version: ModelVersion) -> AbstractContextManager[Path]:
        """Yield the files of the registered model. Raises like `verified_folder`."""
        return verified_folder(self.tracking_uri, version)

    def verify(self, version: ModelVersion) -> None:
        """Raise `ArtifactError` unless the registered model, and the checkpoint that is served, match their digests."""
        version.verify_checkpoint()
        with self.model_folder(version):
            pass

    def aliases(self, version: ModelVersion) -> list[str]:
        """Aliases of a version."""
        model = self.client.get_registered_model(version.name)
        return sorted(name for name, number in model.aliases.items() if int(number) == version.version)

    def provenance(self, version: ModelVersion) -> Provenance:
        """Provenance of a version. Raises like `verified_provenance`."""
        import mlflow

        mlflow.set_tracking_uri(self.tracking_uri)
        return verified_provenance(self.tracking_uri, version)

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
        """Log the values of each name by iteration. Values that are None are left out.

        Names whose last value the run has already are left out too, because a repeated run opens the same record, in
        which each point would appear once more.
        """
        import time

        from mlflow.entities import Metric

        now, known = int(time.time() * 1000), self.client.get_run(run_id).data.metrics
        metrics: list[Metric] = []
        for name, values in series.items():
            points = [Metric(name, value, now, step) for step, value in enumerate(values) if value is not None]
            if points and known.get(name) != points[-1].value:
                metrics += points
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
        """Log the policy as a chat model and register it with its card. The newest version gets the alias `candidate`.

        A second registration with the same `run_key` returns the existing version. A version is created with its tags
        in one transaction when its files are complete, so a killed process leaves no version or a complete one.
        """
        import mlflow

        from grpo.registry.chat_model import log_chat_model

        mlflow.set_tracking_uri(self.tracking_uri)
        with self._exclusive(model):
            version = self.find(model, tags["run_key"])
            if version is None:
                sweep_abandoned(self.client, run_id)
                address, model_id = log_chat_model(policy, run_id, provenance)
                described = {**tags, **self._digests(address, provenance)}
                if provenance.heldout is not None:
                    described[HELDOUT] = str(provenance.heldout)
                signed = signed_tags(model, run_id=run_id, tags=described)
                with self._named(model):
                    version = as_version(
                        self.client.create_model_version(
                            model, source=address, run_id=run_id, tags=signed, model_id=model_id
                        )
                    )
            if self.versions(model)[-1].version == version.version:
                self.client.set_registered_model_alias(model, CANDIDATE, str(version.version))
            self._write_card(version, provenance)
            self._describe(model)
            return version

    def _digests(self, address: str, provenance: Provenance) -> dict[str, str]:
        """Digests of a logged model's files as tags. Raises `SignatureError` if another process has changed them."""
        with fetched(self.tracking_uri, address) as folder:
            content = read_bounded(folder / MLMODEL)
            if parse_provenance(content) != provenance:
                raise SignatureError(f"the files of {address} were changed while they were registered. Run it again")
            return {MODEL_DIGEST: model_digest(folder), MLMODEL_DIGEST: hashlib.sha256(content).hexdigest()}

    def _write_card(self, version: ModelVersion, provenance: Provenance) -> None:
        """Write the description of a version if it has none, because a killed process may not have written it."""
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
        """Write the description of a model: its champion, and the card of the champion or of the newest version."""
        state, versions = self.promotions(model).state(), self.versions(model)
        if not versions:
            return
        newest = versions[-1].version
        shown = newest if state.champion is None else state.champion
        text = model_description(
            model,
            champion=state.champion,
            change=state.history[-1] if state.history else None,
            newest=newest,
            card=self.client.get_model_version(model, str(shown)).description or "",
            moved=state.moved,
        )
        if self.client.get_registered_model(model).description != text:
            self.client.update_registered_model(model, text)

    @contextmanager
    def _named(self, model: str) -> Iterator[None]:
        """Create the registered model if needed, and remove it again if its first version fails."""
        made = False
        with _ignore_existing():
            self.client.create_registered_model(model)
            made = True
        try:
            yield
        except BaseException:  # also on cancellation
            if made and not self.listed(model):
                self.client.delete_registered_model(model)
            raise

    def promotions(self, model: str) -> PromotionLog:
        """Promotions and rollbacks of a model."""
        return PromotionLog(self.client, model, self._exclusive(model))

    def promote(
        self, model: str, version: int, *, reason: str, by: Actor, force: bool = False, follow_alias: bool = False
    ) -> ChampionChange | None:
        """Make a verified version champion, or return None if it is already. Raises like `PromotionLog.promote`."""
        change = self.promotions(model).promote(
            version,
            reason=reason,
            by=by,
            force=force,
            checks=self._checks(model, version),
            verify=self._verifier(model),
            follow_alias=follow_alias,
        )
        self.describe(model)
        return change

    def rollback(self, model: str, *, reason: str, by: Actor, follow_alias: bool = False) -> ChampionChange:
        """Make the version before the present champion the champion again. Raises like `PromotionLog.rollback`."""
        change = self.promotions(model).rollback(
            reason=reason, by=by, verify=self._verifier(model), follow_alias=follow_alias
        )
        self.describe(model)
        return change

    def plan_promotion(self, model: str, version: int, *, reason: str, by: Actor) -> PlannedChange:
        """Plan of `promote`, with the files verified. Writes nothing. Raises `ArtifactError` if files are damaged."""
        checks = self._checks(model, version)
        self._verifier(model)(version)
        return self.promotions(model).plan_promotion(version, reason=reason, by=by, checks=checks)

    def plan_rollback(self, model: str, *, reason: str, by: Actor, follow_alias: bool = False) -> PlannedChange:
        """Plan of `rollback`. Like `plan_promotion`, it verifies the files and writes nothing."""
        plan = self.promotions(model).plan_rollback(reason=reason, by=by, follow_alias=follow_alias)
        assert plan.change is not None
        self._verifier(model)(plan.change.champion)
        return plan

    def describe(self, model: str, *, wait_s: float = -1) -> None:
        """Write the description of a model again, as after each promotion and rollback.

        Raises `TimeoutError` if another process changes the model for longer than `wait_s`. By default it waits.
        """
        with self._exclusive(model).acquire(timeout=wait_s):
            self._describe(model)

    def _verifier(self, model: str) -> Callable[[int], None]:
        return lambda version: self.verify(self._version(model, version))

    def _checks(self, model: str, version: int) -> dict[str, float | None]:
        """Values of the gates of a version. Empty if it has no provenance."""
        known = self._version(model, version)
        return {} if known.is_model_alone else self.provenance(known).checks

    def _version(self, model: str, version: int) -> ModelVersion:
        return self.resolve(f"models:/{model}/{version}")

    def _exclusive(self, model: str) -> FileLock:
        digest = hashlib.sha256(f"{self.tracking_uri} {model}".encode()).hexdigest()[:20]
        return file_lock(_lock_folder(self.tracking_uri) / f"{digest}.lock")


def verified(versions: Iterable[MlflowVersion]) -> Iterator[ModelVersion]:
    """Yield the versions that are believed, and skip the others as if they did not exist."""
    for version in versions:
        with suppress(SignatureError):
            yield as_version(version)


def _lock_folder(tracking_uri: str) -> Path:
    """Folder of the database, or this user's temporary folder if the registry is a server."""
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
