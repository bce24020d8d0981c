"""Training and evaluation data of a version: its scenario table with the split of its own run.

Today's `validation_fraction` may differ from the run's, so the split is read from the version's provenance.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from grpo.artifact_copies import adopt
from grpo.artifacts import Artifact, ArtifactStore, store_of
from grpo.errors import RegistryError
from grpo.policy.weights.registered import as_version
from grpo.registry import ModelVersion, Registry
from grpo.scenario import Scenario
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.split import split
from grpo.scenarios.table import read_scenarios, start_digest
from grpo.storage.documents import Document

STARTED_FROM = "started_from"
"""Tag of a retrained version: digest of the checkpoint that its training started from."""


class TrainingData(Document):
    """A scenario table and the split settings of its run."""

    scenarios: Artifact
    validation_fraction: float
    limit: int | None


class _SplitSettings(BaseModel):
    """Scenario settings of a run that determine its split."""

    validation_fraction: float
    limit: int | None = None


def training_data(models: Registry, artifacts: ArtifactStore, version: ModelVersion) -> TrainingData:
    """Read the training data of a version from its provenance, without scenarios that were erased since."""
    settings = _SplitSettings.model_validate(models.provenance(version).config["scenarios"])
    table = folder_of_run(artifacts, version, "scenarios", version.tags["scenarios"])
    return TrainingData(scenarios=table, validation_fraction=settings.validation_fraction, limit=settings.limit)


def folder_of_run(artifacts: ArtifactStore, version: ModelVersion, kind: str, sha256: str) -> Artifact:
    """Folder that the run of a version has made, without content that was erased since. It may be missing.

    If only the store of the version's checkpoint has it, because the pipeline has another store now, it is copied.
    """
    own = artifacts.remaining(artifacts.folder(kind, sha256))
    if artifacts.has(own) or artifacts.is_erased(own):
        return own
    source = store_of(ArtifactStore(version.checkpoint.uri.rsplit("/", 2)[0]).folder(kind, sha256))
    theirs = artifacts.remaining(source.remaining(source.folder(kind, sha256)))
    if artifacts.is_erased(theirs) or not (artifacts.has(theirs) or source.has(theirs)):
        return own
    copy = adopt(artifacts, theirs)
    if copy.sha256 != sha256:
        artifacts.erase(own, copy)  # what was erased there does not come back here
    return copy


def data_lineage(models: Registry, artifacts: ArtifactStore, version: ModelVersion) -> tuple[TrainingData, ...]:
    """Training data of a version's weights: its own, then the data of each version it descends from, newest first.

    It ends at a model that was admitted without a provenance, because its data are unknown. Raises `RegistryError` if
    the version itself is such a model, and `SignatureError` if the signature of an ancestor does not hold, because
    without the ancestor's data, held-out conversations could be among the data that it was trained on.
    """
    if version.is_model_alone:
        raise RegistryError(
            f"{version.address} was admitted without a provenance, so that the data to retrain it with are unknown. "
            f"Train a version from it with grpo train and policy.model: {version.address}, promote that one, and "
            "retrain it"
        )
    by_checkpoint = {
        earlier.tags.get("checkpoint_sha256"): earlier
        for earlier in sorted(models.listed(version.name), key=lambda listed: -int(listed.version))
    }
    lineage = {version.checkpoint.sha256: training_data(models, artifacts, version)}
    while (start := version.tags.get(STARTED_FROM)) in by_checkpoint and start is not None and start not in lineage:
        version = as_version(by_checkpoint[start])
        if version.is_model_alone:
            break
        lineage[start] = training_data(models, artifacts, version)
    return tuple(lineage.values())


def evaluation_scenarios(artifacts: ArtifactStore, data: TrainingData) -> list[Scenario]:
    """Read the whole held-out split, without the limit on evaluated scenarios."""
    path = artifacts.path(data.scenarios) / SCENARIOS_FILE
    return list(read_scenarios(path, ids=split(path, validation_fraction=data.validation_fraction, limit=None).heldout))


def training_digests(artifacts: ArtifactStore, lineage: Iterable[TrainingData]) -> set[str]:
    """Digests of the texts of all training splits."""
    digests: set[str] = set()
    for data in lineage:
        path = artifacts.path(data.scenarios) / SCENARIOS_FILE
        splits = split(path, validation_fraction=data.validation_fraction, limit=data.limit)
        digests.update(start_digest(scenario) for scenario in read_scenarios(path, ids=splits.train))
    return digests
