"""Table, curves and HTML of a training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from grpo.evaluation.schema import Interval
from grpo.messages import Message
from grpo.notebook import history
from grpo.notebook.diagnostics import IterationRecord
from grpo.trajectories import Outcome, Trajectory, TrajectoryGroup, Turn
from grpo.tuning.study_summary import StudySummary, TrialRecord
from tests.doubles import make_trajectory
from tests.grpo.notebook.test_diagnostics import record
from tests.grpo.notebook.test_trainer import make_trainer, run
from tests.places import ROOT

CELLS = [
    """
import logging
from pathlib import Path
from tests.grpo.notebook.test_trainer import make_trainer
trainer = make_trainer(Path({folder!r}), iterations=2)
agent = await trainer.train()
""",
    "trainer",
    "trainer.history",
    "trainer.plot()",
    "(await trainer.generate_trajectories(trainer.sample_scenarios(0)[:1]))[0]",
]


def test_in_a_notebook_a_training_shows_a_bar_and_curves(tiny_folder: Path):
    """In a kernel of Jupyter: one output that was redrawn, then the trainer, its table, its plot and a group."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell.format(folder=str(tiny_folder))) for cell in CELLS]
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(ROOT)}}).execute()
    shown = [[output for output in cell.outputs if output.output_type != "stream"] for cell in notebook.cells]
    (view,) = shown[0]
    html = view.data["text/html"]
    assert '<progress value="2.00" max="2"' in html
    assert "2 of 2 iterations; done; reward " in html
    assert "<svg" in html
    (summary,), (table,), (plot,), (group,) = shown[1:]
    assert "iteration 2 of 2: reward" in summary.data["text/html"]
    assert "rollout/reward_low" in table.data["text/html"]
    assert "image/png" in plot.data
    assert group.data["text/html"].count("<table>") == 8


def test_a_script_shows_nothing(tiny_folder: Path, capfd: pytest.CaptureFixture[str]):
    """Outside of a notebook the log has the rewards."""
    trainer = make_trainer(tiny_folder, iterations=1)
    run(trainer)
    assert capfd.readouterr().out == ""


def _interval(mean: float) -> Interval:
    return Interval(mean=mean, low=mean - 0.1, high=mean + 0.1, count=4)


def _measured(index: int, reward: float, success: float) -> IterationRecord:
    intervals = {"reward_interval": _interval(reward), "success_interval": _interval(success)}
    return record(index, rollout={"reward": reward, "success": success}).model_copy(update=intervals)


def test_the_table_has_a_row_for_each_iteration():
    """Two iterations, the second with an evaluation: the first has none of its metrics."""
    table = history.table([_measured(0, 0.25, 0.5), _measured(1, 0.5, 0.75)], {1: {"reward": 0.625}})
    assert list(table.index) == [1, 2]
    assert list(table["rollout/reward"]) == [0.25, 0.5]
    assert list(table["rollout/success_high"]) == [0.6, 0.85]
    assert table["heldout/reward"].isna().tolist() == [True, False]
    assert table["heldout/reward"][2] == 0.625


def test_an_untrained_trainer_has_an_empty_table_and_no_curve(tiny_folder: Path):
    """Neither fails before the first iteration."""
    trainer = make_trainer(tiny_folder)
    assert len(trainer.history) == 0
    assert trainer._repr_html_() == "<p>0 of 4 iterations</p>"
    assert trainer.plot()._repr_png_().startswith(b"\x89PNG")


def test_the_interval_is_of_scenarios_and_leaves_failed_episodes_out():
    """Two scenarios with mean 1 and 0; half a scenario is counted at each end, so the interval is inside of [0, 1]."""

    def episode(scenario: str, sample: int, reward: float, **changes: object) -> Trajectory:
        outcome = Outcome(success=reward == 1.0)
        episode = make_trajectory(scenario_id=scenario, sample=sample, terminal_reward=reward, outcome=outcome)
        return replace(episode, **changes)

    episodes = [episode("a", 0, 1.0), episode("a", 1, 1.0), episode("b", 0, 0.0), episode("b", 1, 0.0)]
    failed = replace(episode("b", 2, 0.0), stop="failed", error="lost", terminal_reward=None, outcome=None)
    interval = history.rollout_interval([*episodes, failed], "success", seed=0)
    assert interval is not None
    assert (interval.mean, interval.count) == (0.5, 2)
    assert 0 < interval.low < 0.2
    assert 0.8 < interval.high < 1
    unscored = [replace(episode, terminal_reward=None, outcome=None) for episode in episodes]
    assert history.rollout_interval(unscored, "reward", seed=0) is None


def test_texts_of_a_conversation_are_escaped():
    """A customer's markup is shown, not run."""
    trajectory = make_trajectory()
    message = Message(role="user", content="<script>alert(1)</script>")
    trajectory = replace(trajectory, turns=(Turn(message=message, start=0, stop=0),))
    html = TrajectoryGroup(scenario_id=trajectory.scenario_id, trajectories=(trajectory,))._repr_html_()
    assert "&lt;script&gt;alert(1)" in html
    assert "<script" not in html


def test_a_study_is_a_table_of_its_trials():
    """The best trial, each trial's parameters, and the reason of a failed one."""
    shared = {"ended": True, "intermediate_evals": (), "numbers": {}, "seconds": None}
    summary = StudySummary(
        name="lr",
        direction="maximize",
        importance={},
        trials=(
            TrialRecord(number=0, state="complete", params={"beta": 0.1}, reward=0.5, reason=None, **shared),
            TrialRecord(number=1, state="failed", params={"beta": 0.2}, reward=None, reason="<lost>", **shared),
        ),
    )
    html = summary._repr_html_()
    assert "best: trial 0, 0.5" in html
    assert "<td>failed</td><td></td><td>0.2</td><td>&lt;lost&gt;</td>" in html
