"""The stage that counts successes, and the rollout that draws by them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.curriculum import CurriculumSettings
from grpo.config.pipeline import PipelineConfig
from grpo.rollout.curriculum import SuccessCount
from grpo.tables import read_all, write_trajectories
from grpo.trajectories import Outcome
from grpo_tasks.curriculum import curriculum, read_curriculum
from grpo_tasks.ingest import ingest
from grpo_tasks.load_base import load_base
from grpo_tasks.rollout import rollout
from grpo_tasks.rollout_request import RolloutRequest
from grpo_tasks.split import read_split, split
from tests.doubles import changed, make_trajectory, put_file

SETTINGS = CurriculumSettings(discount=0.5)


def put_episodes(store: ArtifactStore, outcomes: Mapping[str, bool]) -> Artifact:
    """Scored episodes, one of each scenario."""
    rows = [make_trajectory(scenario_id=name, outcome=Outcome(success=success)) for name, success in outcomes.items()]
    return put_file(store, "scored", ".parquet", lambda path: write_trajectories(path, rows, provenance={}))


def test_counts_are_added_to_those_of_the_iteration_before(tmp_path: Path):
    """Two rounds of an iteration, then one round: a ½ · 1 + 1 successes, b ½ failures; equal inputs, one artifact."""
    store = ArtifactStore(str(tmp_path))
    rounds = (put_episodes(store, {"a": True}), put_episodes(store, {"b": False}))
    first = curriculum.fn(previous=None, scored=rounds, settings=SETTINGS, store=str(tmp_path))
    later = (put_episodes(store, {"a": True, "c": False}),)
    second = curriculum.fn(previous=first.curriculum, scored=later, settings=SETTINGS, store=str(tmp_path))
    assert read_curriculum(store, second.curriculum).scenarios == {
        "a": SuccessCount(successes=1.5, failures=0),
        "b": SuccessCount(successes=0, failures=0.5),
        "c": SuccessCount(successes=0, failures=1),
    }
    again = curriculum.fn(previous=first.curriculum, scored=later, settings=SETTINGS, store=str(tmp_path))
    assert again == second


def test_a_rollout_plays_what_the_curriculum_draws(desk_config: Mapping[str, object]):
    """Six of the training scenarios never fail: with nearly no floor and much evidence, the other two are played."""
    sections = {"rollout": {"scenarios": 2, "shards": 1, "curriculum": {"uniform_share": 0.0001}}}
    config = PipelineConfig.model_validate(changed(desk_config, **sections))
    store = config.store
    artifacts = ArtifactStore(store)
    read = ingest.fn(sources=config.scenarios.sources, content="", max_quarantined_fraction=0.0, store=store)
    sides = split.fn(scenarios=read.scenarios, validation_fraction=0.25, limit=8, store=store)
    ids = read_split(artifacts, sides.split).train
    rows = [
        make_trajectory(scenario_id=name, outcome=Outcome(success=index < 6 or sample % 2 == 0))
        for index, name in enumerate(ids)
        for sample in range(2000)
    ]
    scored = put_file(artifacts, "scored", ".parquet", lambda path: write_trajectories(path, rows, provenance={}))
    settings = config.rollout.curriculum
    assert settings is not None
    past = curriculum.fn(previous=None, scored=(scored,), settings=settings, store=store)
    policy = load_base.fn(policy=config.policy, content="", store=store)
    played = rollout.fn(
        request=RolloutRequest(
            checkpoint=policy.checkpoint,
            scenarios=read.scenarios,
            split=sides.split,
            parts=config.episode_parts,
            settings=config.rollout,
            seed=3,
        ),
        samples=2,
        temperature=1.0,
        part=1,
        round=0,
        shard=0,
        store=store,
        curriculum=past.curriculum,
    )
    assert {t.scenario_id for t in read_all([artifacts.path(played.rollout)])} == set(ids[6:])


@pytest.mark.parametrize(("levels", "opened"), [((), ()), (("c", "d"), ("c", "d"))])
def test_the_result_names_the_open_levels(tmp_path: Path, levels: tuple[str, ...], opened: tuple[str, ...]):
    """Ten successes of the first level open the second."""
    store = ArtifactStore(str(tmp_path))
    settings = CurriculumSettings(levels=levels)
    scored = put_episodes(store, {f"s{k}": True for k in range(10)})
    result = curriculum.fn(previous=None, scored=(scored,), settings=settings, store=str(tmp_path))
    assert result.open_levels == opened
