from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from mlflow.entities.model_registry import ModelVersion as MlflowVersion
from mlflow.entities.model_registry import ModelVersionTag

from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import RegistryError, SignatureError
from grpo.policy.weights.registered import as_version, signed_tags
from grpo.registry import ModelVersion, Provenance, Registry
from grpo.retraining.data_lineage import TrainingData, data_lineage, evaluation_scenarios, training_digests
from grpo.scenario import Scenario
from grpo.scenarios.split import assign_split
from grpo.scenarios.table import start_digest, write_scenarios
from tests.grpo.registry.making import make_provenance

SCENARIOS = [Scenario(id=f"s{k}", user_responses=(f"Parcel {k} is late.",)) for k in range(100)]


class Versions:
    """A registry of three versions: each began with the weights of the one before, and held out another share."""

    shares = (0.26, 0.10, 0.25)

    def __init__(self, changed: Mapping[str, str] | None = None, *, admitted: int = 0) -> None:
        self.admitted = admitted
        """Version that was admitted without a provenance."""
        self.changed = dict(changed or {})
        """Tags of the first version that somebody has changed after it was signed."""

    def listed(self, model: str) -> list[MlflowVersion]:
        """The first one began with a base model that no run made."""
        return [
            MlflowVersion(
                name=model,
                version=str(k),
                creation_timestamp=0,
                run_id="r",
                source="s",
                tags=[ModelVersionTag(*tag) for tag in self._tags(model, k).items()],
            )
            for k in (1, 2, 3)
        ]

    def versions(self, model: str) -> list[ModelVersion]:
        """The same, as they are believed."""
        return [as_version(version) for version in self.listed(model)]

    def _tags(self, model: str, k: int) -> dict[str, str]:
        tags = {
            "checkpoint_uri": f"store/c{k}",
            "checkpoint_sha256": f"c{k}",
            "scenarios": f"{k}" * 64,
            "started_from": f"c{k - 1}",
        }
        if k == self.admitted:
            tags = {name: tags[name] for name in ("checkpoint_uri", "checkpoint_sha256")} | {"admitted": "{}"}
        return signed_tags(model, run_id="r", tags=tags) | (self.changed if k == 1 else {})

    def provenance(self, version: ModelVersion) -> Provenance:
        """Settings of the run, among others."""
        share = self.shares[version.version - 1]
        return make_provenance(config={"scenarios": {"sources": [], "validation_fraction": share, "limit": None}})


def put_table(artifacts: ArtifactStore) -> Artifact:
    with artifacts.new_folder("scenarios") as new:
        write_scenarios(new.path / "scenarios.parquet", SCENARIOS)
    return new.artifact


def held_out(share: float) -> set[str]:
    return {scenario.id for scenario in SCENARIOS if assign_split(start_digest(scenario), share=share) == "heldout"}


def test_the_split_of_a_version_uses_its_own_fraction(tmp_path: Path):
    """Version 2 and both before it, newest first, each with its own share; version 3 came later."""
    artifacts, models = ArtifactStore(str(tmp_path)), Versions()
    result = data_lineage(cast("Registry", models), artifacts, models.versions("desk")[1])
    assert [(data.scenarios.sha256[0], data.validation_fraction) for data in result] == [
        ("2", 0.10),
        ("1", 0.26),
    ]


def test_an_ancestor_that_is_not_believed_ends_the_retraining(tmp_path: Path):
    """Without its data nobody knows what its descendants were trained on."""
    models = Versions(changed={"scenarios": "9" * 64})
    with pytest.raises(SignatureError, match=r"models:/desk/1 was changed after it was signed \(tag scenarios\)"):
        data_lineage(cast("Registry", models), ArtifactStore(str(tmp_path)), as_version(models.listed("desk")[1]))


def test_a_model_that_was_admitted_without_a_provenance_ends_the_lineage(tmp_path: Path):
    """Its data are unknown. Its descendant is retrained, and it itself is not: the message says what to do instead."""
    artifacts, models = ArtifactStore(str(tmp_path)), Versions(admitted=1)
    first, second, _ = models.versions("desk")
    assert [data.scenarios.sha256[0] for data in data_lineage(cast("Registry", models), artifacts, second)] == ["2"]
    with pytest.raises(RegistryError, match=r"models:/desk/1 was admitted without .* policy.model: models:/desk/1, pr"):
        data_lineage(cast("Registry", models), artifacts, first)


def test_evaluation_scenarios_ignore_the_limit(tmp_path: Path):
    """Of the held-out side all, played or not; of the training side what the limit let it see."""
    artifacts = ArtifactStore(str(tmp_path))
    seen = TrainingData(scenarios=put_table(artifacts), validation_fraction=0.26, limit=5)
    assert {scenario.id for scenario in evaluation_scenarios(artifacts, seen)} == held_out(0.26)
    assert len(training_digests(artifacts, [seen])) == 5


def test_training_digests_cover_all_ancestors(tmp_path: Path):
    """At 0.26 fewer are trained on than at 0.10: together they are those of 0.10."""
    artifacts = ArtifactStore(str(tmp_path))
    table = put_table(artifacts)
    seen = [TrainingData(scenarios=table, validation_fraction=share, limit=None) for share in (0.26, 0.10)]
    assert held_out(0.10) < held_out(0.26)
    assert training_digests(artifacts, seen) == {
        start_digest(scenario) for scenario in SCENARIOS if scenario.id not in held_out(0.10)
    }
