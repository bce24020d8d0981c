"""Runs with a continuous rollout: windows as artifacts, a run that is resumed, and reads of the user's code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.rollout.windows import QueueState
from grpo.tables import read_provenance, read_trajectories
from grpo.trajectories import Trajectory
from grpo_flows.dry_run import dry_run
from grpo_flows.pipeline import Step, base_policy, prepare_scenarios, training_steps
from grpo_tasks.execution.executor import InProcessExecutor
from grpo_tasks.execution.stage import Call, executed_by
from grpo_tasks.rollout_window import WindowResult
from tests.doubles import short_run

pytestmark = pytest.mark.filterwarnings("ignore")

TRAINING = {"importance_sampling_cap": 2.0, "max_mismatch_kl": 1.0, "learning_rate": 1e-4}
ROLLOUT = {"shards": 1, "scenarios": 4, "group_size": 2, "max_new_tokens": 16}
READER = """
from pathlib import Path
from grpo import ConversationEnvironment

class Reader(ConversationEnvironment):
    async def reset(self, scenario, *, seed):
        (Path(__file__).parent / "prices.txt").read_text()
        return await super().reset(scenario, seed=seed)
"""


class Executor(InProcessExecutor):
    """Runs the stages here, and notes which ones are computed. The window of `interrupted` is never returned."""

    def __init__(self, *, interrupted: int | None = None) -> None:
        self.computed: list[str] = []
        self.windows: list[WindowResult] = []
        self._interrupted = interrupted

    def run(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """See `grpo_tasks.execution.stage.Executor`."""
        stage, inputs = calls[0].stage, calls[0].inputs
        if stage.name == "rollout_window" and inputs["iteration"] == self._interrupted:
            raise KeyboardInterrupt
        self.computed += [call.stage.name for call in calls if call.stage.find(call.inputs) is None]
        results = super().run(calls)
        self.windows += [result for result in results if isinstance(result, WindowResult)]
        return results

    def train(self, config: PipelineConfig) -> list[Step]:
        """Train with these stages, without an evaluation."""
        with executed_by(self):
            data = prepare_scenarios(config.scenarios, store=config.store, environment=config.environment)
            base = base_policy(config.policy, config.store)
            return list(training_steps(config, data.split, base))

    def episodes(self, config: PipelineConfig, window: int) -> list[Trajectory]:
        """Trajectories of a window."""
        return list(read_trajectories(ArtifactStore(config.store).path(self.windows[window].rollout)))


def _config(folder: Path, *, iterations: int, **rollout: object) -> PipelineConfig:
    sections = short_run(folder, training={**TRAINING, "iterations": iterations}, rollout={**ROLLOUT, **rollout})
    return PipelineConfig.model_validate(sections)


def test_without_staleness_a_continuous_run_makes_the_policies_of_the_stages(tmp_path: Path):
    """Both updates give the same weights, bit for bit, and nothing is stale or dropped."""
    stages = Executor().train(_config(tmp_path / "stages", iterations=2))
    continuous = Executor().train(_config(tmp_path / "continuous", iterations=2, mode="continuous", max_staleness=0))
    assert [step.policy.policy for step in continuous] == [step.policy.policy for step in stages]
    assert [(s.iteration.staleness_max, s.iteration.dropped_episodes) for s in continuous] == [(0, 0), (0, 0)]
    assert [step.iteration.staleness_max for step in stages] == [None, None]


def test_a_run_that_was_interrupted_goes_on_with_the_windows_that_it_has(tmp_path: Path):
    """Window 2 is interrupted. The next run reads windows 0 and 1, begins again with the groups that window 1 names
    as unfinished, and computes nothing twice. A third run computes nothing at all."""
    config = _config(tmp_path, iterations=3, mode="continuous", max_staleness=2)
    first, second, third = Executor(interrupted=2), Executor(), Executor()
    with pytest.raises(KeyboardInterrupt):
        first.train(config)
    steps = second.train(config)
    assert second.computed == ["rollout_window", "score", "train"]
    assert second.windows[:2] == first.windows
    played = [[(t.scenario_id, t.seed) for t in second.episodes(config, window)] for window in range(3)]
    assert [len(window) for window in played] == [8, 8, 8]
    assert len({seed for window in played for _, seed in window}) == 24
    left = QueueState.model_validate_json(
        read_provenance(ArtifactStore(config.store).path(first.windows[1].rollout))["queue"]
    )
    assert {draw.scenario_id for draw in left.unfinished} == {scenario for scenario, _ in played[2]}
    assert {t.policy_hash for t in second.episodes(config, 2)} == {steps[1].policy.policy}
    assert steps[2].iteration.staleness_max == 0
    assert [step.policy for step in third.train(config)] == [step.policy for step in steps]
    assert third.computed == []
    plan = {stage.name: (stage.cached, stage.runs) for stage in dry_run(config).stages}
    assert (plan["rollout_window"], plan["rollout"], plan["train"]) == ((3, 3), (0, 2), (3, 3))


def test_episodes_of_a_window_come_from_policies_of_the_run(tmp_path: Path):
    """The learner refuses tokens of other policies, so that each window is trained on by the run that made it."""
    config = _config(tmp_path, iterations=3, mode="continuous", max_staleness=1)
    executor = Executor()
    steps = executor.train(config)
    versions = [executor.episodes(config, 0)[0].policy_hash, *(step.policy.policy for step in steps)]
    for index, window in enumerate(executor.windows):
        allowed = versions[max(0, index - 1) : index + 1]
        episodes = executor.episodes(config, index)
        assert {policy for trajectory in episodes for policy in trajectory.policies} <= set(allowed)
        oldest = min(versions.index(trajectory.policy_hash) for trajectory in episodes)
        assert window.window.staleness_max == index - oldest


def test_what_an_environment_reads_between_windows_counts_for_each_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The rollout's thread reads the file. Each window names it, and is computed again after the file has changed."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "price_reader.py").write_text(READER)
    (folder / "prices.txt").write_text("nine")
    monkeypatch.syspath_prepend(folder)
    config = PipelineConfig.model_validate(
        {
            **_config(tmp_path, iterations=2, mode="continuous", max_staleness=1).model_dump(),
            "environment": {"kind": "python", "object": "price_reader:Reader"},
            "reward": [{"kind": "conciseness", "weight": 1.0}],
        }
    )
    executor = Executor()
    executor.train(config)
    for window in executor.windows:
        assert any(name.endswith("prices.txt") for name in window.reads), window.reads
    (folder / "prices.txt").write_text("ten")
    again = Executor()
    again.train(config)
    assert again.computed.count("rollout_window") == 2
