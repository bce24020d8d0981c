"""Rollouts of an iteration: further rounds, and rollouts that overlap training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.errors import NoLearningSignal
from grpo.evaluation.report import read_report
from grpo.evaluation.schema import ReportDocument
from grpo.learner.checkpoints import read_state
from grpo.policy.transformers.model import load
from grpo.rollout.curriculum import Curriculum
from grpo.scenarios.split import Split
from grpo.tables import read_all, read_trajectories
from grpo.trajectories import Trajectory, group
from grpo_flows.dry_run import dry_run
from grpo_flows.train import train
from tests.doubles import changed
from tests.places import DESK_MODEL

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]


def _run(config: dict[str, Any], home: Path, **sections: Any) -> ReportDocument:
    """Run the flow with these changes and read its report back."""
    plan = PipelineConfig.model_validate(changed(config, **sections))
    train(plan)
    return read_report(home / plan.name / "report.json")


def _runs(document: ReportDocument) -> dict[str, tuple[int, int]]:
    """(cached, all) runs of each stage."""
    return {stage.name: (stage.cached, stage.runs) for stage in document.stages}


def _played(store: Path) -> dict[str, list[Trajectory]]:
    """Every episode in a store, by the iteration that it was played for."""
    played: dict[str, list[Trajectory]] = {}
    for path in sorted((store / "rollout").glob("*.parquet")):
        part = (pq.read_schema(path).metadata or {})[b"part"].decode()
        played.setdefault(part, []).extend(read_trajectories(path))
    return played


def test_further_rounds_are_trained_on_too(desk_config: dict[str, Any], home: Path, tmp_path: Path):
    """6 scenarios a round, and as many informative groups wanted as there can be: 12 groups are learned from."""
    settings = {"informative_groups": 12, "max_rounds": 2}
    document = _run(desk_config, home, rollout=settings, training={"iterations": 1})
    (iteration,) = document.iterations
    assert iteration.rounds == 2
    played = {(t.scenario_id, t.sample) for t in _played(tmp_path / "store")["0"]}
    assert len({scenario for scenario, _ in played}) == 12
    assert len(played) == 12 * 4
    scored = [t for path in (tmp_path / "store" / "scored").glob("*") for t in read_trajectories(path)]
    groups = group([t for t in scored if (t.scenario_id, 0) in played])
    taught = [
        trajectory.completion_tokens
        for siblings in groups
        for trajectory, reward in zip(siblings.trajectories, siblings.rewards, strict=True)
        if abs(reward - sum(siblings.rewards) / 4) > 1e-9
    ]
    assert iteration.tokens == sum(taught)


def test_rounds_end_when_every_scenario_was_played(desk_config: dict[str, Any], home: Path):
    """A reward that never differs: 10, 10 and the last 4 of 24 scenarios, then the run fails as it must."""
    with pytest.raises(NoLearningSignal):
        _run(
            desk_config,
            home,
            name="searching",
            reward=[{"kind": "constant", "weight": 1.0}],
            rollout={"scenarios": 10, "informative_groups": 1, "max_rounds": 9},
        )
    assert _runs(read_report(home / "searching" / "report.json"))["score"] == (0, 3)


def test_stale_rollouts_are_those_of_the_policy_before(desk_config: dict[str, Any], home: Path, tmp_path: Path):
    """Iterations 0 and 1 are played by the base, 2 by the first update; the same run again computes nothing."""
    config, store = {**desk_config, "name": "stale"}, tmp_path / "store"
    changes: dict[str, Any] = {
        "save_total_limit": None,
        "rollout": {"staleness": 1},
        "training": {"iterations": 3, "importance_sampling_cap": 2.0, "learning_rate": 1e-4},
    }
    first = _run(config, home, **changes)
    parents = {state.policy_hash: state.parent for state in map(read_state, (store / "checkpoint").glob("*"))}
    chain = [first.lineage.candidate_policy]
    while parent := parents[chain[0]]:
        chain.insert(0, parent)
    players = {part: {t.policy_hash for t in rows} for part, rows in _played(store).items()}
    assert [players[part] for part in ("0", "1", "2")] == [{chain[0]}, {chain[0]}, {chain[1]}]
    assert chain[0] == first.lineage.base_policy
    assert len(chain) == 4
    again = _run(config, home, **changes)
    assert all(cached == runs for cached, runs in _runs(again).values()), _runs(again)
    assert again.lineage == first.lineage


def test_a_curriculum_draws_from_the_episodes_before_and_a_repeated_run_draws_the_same(
    desk_config: dict[str, Any], home: Path, tmp_path: Path
):
    """Each draw follows from the scored episodes before it, and the same run again computes nothing."""
    changes: dict[str, Any] = {"rollout": {"curriculum": {"discount": 0.5}}, "training": {"iterations": 2}}
    config = {**desk_config, "name": "curriculum"}
    first = _run(config, home, **changes)
    assert _runs(first)["curriculum"] == (0, 1)

    plan = PipelineConfig.model_validate(changed(config, **changes))
    store, settings = ArtifactStore(plan.store), plan.rollout.curriculum
    assert settings is not None
    (path,) = (tmp_path / "store" / "split").glob("*.json")
    ids = Split.model_validate_json(path.read_bytes()).train
    expected, state = [], Curriculum()
    for iteration, record in enumerate(first.rollouts[:2]):
        count = plan.rollout.scenarios
        drawn = state.draw(ids, settings, categories=dict, iteration=iteration, count=count, seed=plan.seed)
        expected.append(set(drawn))
        state = state.after(read_all([store.path(artifact) for artifact in record.scored]), settings)
    played = _played(tmp_path / "store")
    assert [{t.scenario_id for t in played[str(part)]} for part in range(2)] == expected
    assert sum(count.successes for count in state.scenarios.values()) > 0

    again = _run(config, home, **changes)
    assert all(cached == runs for cached, runs in _runs(again).values()), _runs(again)
    assert again.lineage == first.lineage


def test_a_teacher_trains_where_rewards_are_equal(desk_config: dict[str, Any], home: Path, tmp_path: Path):
    """Its weights are part of the identity of the updates, and the plan of the run sees it."""
    teacher = tmp_path / "teacher"
    policy = load(DESK_MODEL)

    def save() -> None:
        torch.nn.init.normal_(policy.model.get_output_embeddings().weight, std=0.1)
        policy.model.save_pretrained(teacher)
        policy.tokenizer.save_pretrained(teacher)

    save()
    distillation = {"teacher_model_name_or_path": str(teacher), "privileged_context": ["outcome"]}
    sections: dict[str, Any] = {
        "reward": [{"kind": "constant", "weight": 1.0}],
        "training": {"iterations": 1, "distillation": distillation},
    }
    document = _run(desk_config, home, name="taught", **sections)
    (iteration,) = document.iterations
    assert (iteration.informative_share, iteration.taught_share) == (0, 1)
    assert iteration.teacher_kl is not None
    assert iteration.teacher_kl > 0.1
    assert "KL to the teacher" in (home / "taught" / "report.html").read_text(encoding="utf-8")
    config = PipelineConfig.model_validate(changed(desk_config, name="taught", **sections))
    plan = dry_run(config)
    planned = {stage.name: (stage.cached, stage.runs) for stage in plan.stages}
    assert (planned["load_base"], planned["train"]) == ((2, 2), (1, 1))
    assert plan.memory.weights == 3 * plan.memory.parameters * 4
    save()
    changed_teacher = {stage.name: (stage.cached, stage.runs) for stage in dry_run(config).stages}
    assert (changed_teacher["load_base"], changed_teacher["train"]) == ((1, 2), (0, 1))
    assert changed_teacher["split"] == (1, 1)
