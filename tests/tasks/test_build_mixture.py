from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.environments import SupportDeskSettings
from grpo.config.retraining import MixtureSettings
from grpo.retraining.data_lineage import TrainingData
from grpo.scenario import Scenario
from grpo.scenarios.split import assign_split
from grpo.scenarios.table import read_scenarios, start_digest, write_scenarios
from grpo_tasks.build_mixture import UNPLAYABLE, build_mixture
from grpo_tasks.split import split
from tests.doubles import put_folder

SAID = [Scenario(id=f"s{k}", user_responses=(f"Parcel {k} is late.",)) for k in range(100)]
HELD_AT_10, HELD_AT_26 = (
    {one.id for one in SAID if assign_split(start_digest(one), share=share) == "heldout"} for share in (0.10, 0.26)
)


def held_out(store: Path, *, then: float, now: float) -> set[str]:
    """Held-out part of a mixture when the champion was trained with another fraction than that of the settings."""
    artifacts = ArtifactStore(str(store))

    def put(kind: str, name: str, scenarios: list[Scenario]) -> Artifact:
        return put_folder(artifacts, kind, lambda folder: write_scenarios(folder / name, scenarios) and None)

    table = put("scenarios", "scenarios.parquet", SAID)
    mixed = build_mixture.fn(
        base=table,
        split=split.fn(scenarios=table, validation_fraction=now, limit=None, store=str(store)).split,
        conversations=put("conversations", "accepted.parquet", []),
        new_ids=(),
        lineage=(TrainingData(scenarios=table, validation_fraction=then, limit=None),),
        settings=MixtureSettings(),
        validation_fraction=now,
        seed=0,
        store=str(store),
    )
    return {one.id for one in read_scenarios(artifacts.path(mixed.mixture)) if one.split == "heldout"}


def test_no_scenario_changes_sides_when_less_is_held_out(tmp_path: Path):
    """At 0.26 then and 0.10 now: all that the champion was judged on stays held out."""
    assert HELD_AT_10 < HELD_AT_26
    assert held_out(tmp_path, then=0.26, now=0.10) == HELD_AT_26


def test_no_scenario_changes_sides_when_more_is_held_out(tmp_path: Path):
    """At 0.10 then and 0.26 now: nothing that the champion was trained on judges its successor."""
    assert held_out(tmp_path, then=0.10, now=0.26) == HELD_AT_10


def test_conversations_that_the_environment_cannot_play_are_left_out_and_counted(tmp_path: Path):
    """A client may give a world of its own with its outcome. Too many of them would end the run."""
    artifacts = ArtifactStore(str(tmp_path))

    def put(kind: str, name: str, scenarios: list[Scenario]) -> Artifact:
        return put_folder(artifacts, kind, lambda folder: write_scenarios(folder / name, scenarios) and None)

    said = {f"c{k}": {"orders": {}} if k % 2 else {"x": 1} for k in range(20)}
    conversations = [Scenario(id=name, user_responses=(f"Hello {name}.",), world=world) for name, world in said.items()]
    table = put("scenarios", "scenarios.parquet", SAID)
    mixed = build_mixture.fn(
        base=table,
        split=split.fn(scenarios=table, validation_fraction=0.2, limit=None, store=str(tmp_path)).split,
        conversations=put("conversations", "accepted.parquet", conversations),
        new_ids=(),
        lineage=(),
        settings=MixtureSettings(),
        validation_fraction=0.2,
        seed=0,
        store=str(tmp_path),
        environment=SupportDeskSettings(kind="support_desk"),
    )
    assert mixed.counts.left_out[UNPLAYABLE] == 10
    used = {one.id for one in read_scenarios(artifacts.path(mixed.mixture))} & said.keys()
    assert used
    assert all(said[name] == {"orders": {}} for name in used)
