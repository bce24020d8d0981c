from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.rewards import RewardComponent
from grpo.errors import BudgetError, RewardError
from grpo.messages import Message
from grpo.scenario import Scenario
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import write_scenarios
from grpo.tables import read_trajectories, write_trajectories
from grpo.trajectories import Outcome, Turn
from grpo_tasks.score import ScoreResult, score
from tests.doubles import make_trajectory, put_file, put_folder
from tests.model_server import Model, conversations, judges


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.close()


def _score(model: Model, store: Path, *, error_budget: float) -> ScoreResult:
    """Two scenarios, two siblings each, who say "a" and "b", scored by a judge."""
    artifacts = ArtifactStore(str(store))
    known = [Scenario(id=name, user_responses=("hi",), context=f"context of {name}") for name in "st"]
    played = [
        make_trajectory(
            scenario_id=name, sample=k, turns=(Turn(message=Message(role="assistant", content=said), start=0, stop=1),)
        )
        for name in "st"
        for k, said in enumerate("ab")
    ]

    def table(path: Path) -> None:
        write_scenarios(path / SCENARIOS_FILE, known)

    rollout: Artifact = put_file(
        artifacts, "rollout", ".parquet", lambda p: write_trajectories(p, played, provenance={})
    )
    options = {"model": f"openai+{model.url}#clerk", "folder": str(store / "judge"), "retries": 0}
    return score.fn(
        rollouts=(rollout,),
        scenarios=put_folder(artifacts, "scenarios", table),
        reward=(RewardComponent(kind="ruler", weight=0.6, options=options),),
        judge=None,
        error_budget=error_budget,
        timeout_s=60,
        store=str(store),
    )


def _judge_that_forgets(scenario: str) -> Any:
    """No verdict for one scenario, which it knows by its context."""

    def answer(body: dict[str, Any]) -> tuple[Any, ...]:
        if f"context of {scenario}" in body["messages"][1]["content"]:
            return 500, {}
        return judges(lambda said, place: {"a": 0.5, "b": 1.0}[said])(body)

    return answer


def test_the_stage_writes_what_the_judge_said_and_masks_what_it_did_not(model: Model, tmp_path: Path):
    """Scenario s gets .5 and 1 at weight .6; t keeps no reward, is counted, and its reason stands in the table."""
    model.answers = [_judge_that_forgets("t")]
    result = _score(model, tmp_path, error_budget=0.5)
    scored = list(read_trajectories(ArtifactStore(str(tmp_path)).path(result.scored)))
    assert [t.terminal_reward for t in scored] == [pytest.approx(0.3), pytest.approx(0.6), None, None]
    assert [t.breakdown.get("ruler") for t in scored] == [0.5, 1.0, None, None]
    assert scored[2].error == f"unscored: ruler: {model.url}#clerk answered HTTP 500, tried 1 times"
    assert (result.summary.episodes, result.summary.rewarded, result.summary.informative_groups) == (4, 2, 1)
    assert all(len(conversations(asked)) == 2 for asked in model.asked)


def test_a_judge_that_is_silent_too_often_stops_the_stage(model: Model, tmp_path: Path):
    """Two of four are more than a quarter; the first reason is told."""
    model.answers = [_judge_that_forgets("s")]
    with pytest.raises(
        BudgetError, match=r"2 of 4 episodes could not be judged.* 25%\. .*scenario s sample 0: .*HTTP 500"
    ):
        _score(model, tmp_path, error_budget=0.25)


def _stage(store: Path, *outcomes: Outcome) -> ScoreResult:
    """Episodes with these outcomes, rewarded by task completion, without a judge; no episode may be unscored."""
    artifacts = ArtifactStore(str(store))
    known = [Scenario(id=str(k), user_responses=("hi",)) for k in range(len(outcomes))]
    played = [make_trajectory(scenario_id=str(k), outcome=outcome) for k, outcome in enumerate(outcomes)]
    return score.fn(
        rollouts=(put_file(artifacts, "rollout", ".parquet", lambda p: write_trajectories(p, played, provenance={})),),
        scenarios=put_folder(
            artifacts, "scenarios", lambda path: write_scenarios(path / SCENARIOS_FILE, known) and None
        ),
        reward=(RewardComponent(kind="task_completion", weight=1.0),),
        judge=None,
        error_budget=0.0,
        timeout_s=60,
        store=str(store),
    )


WAITING = Outcome.of({"end_state": True}, unjudged=("NL_ASSERTION",))


def test_what_nothing_judges_is_counted_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """One of two has no reward; the log has the number and the remedy, the summary the count."""
    result = _stage(tmp_path, Outcome(success=True), WAITING)
    assert (result.summary.rewarded, result.summary.unjudged, result.summary.success) == (1, 1, 1.0)
    assert "1 of 2 episodes have no reward, because nothing judges NL_ASSERTION" in caplog.text
    assert "Set judge" in caplog.text


AIMLESS = Outcome.of({}, state={"orders": {}})


def test_an_episode_whose_scenario_expects_nothing_is_counted_and_has_no_reward(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """It is neither a success nor an error, and the log names its scenario and the remedy."""
    result = _stage(tmp_path, Outcome(success=False, checks={"a": False}), AIMLESS)
    assert (result.summary.rewarded, result.summary.unjudged, result.summary.success) == (1, 1, 0.0)
    assert "1 of 2 episodes have no reward, because their scenarios (" in caplog.text
    assert "Give them `expected`" in caplog.text


def test_a_rollout_of_which_nothing_is_expected_is_refused(tmp_path: Path):
    """Every episode would have been paid for doing nothing."""
    with pytest.raises(RewardError, match=r"2 of 2 episodes have no reward, because their scenarios .* expect nothing"):
        _stage(tmp_path, AIMLESS, AIMLESS)


def test_a_rollout_of_which_nothing_is_judged_is_refused(tmp_path: Path):
    """There would be nothing to learn from."""
    with pytest.raises(RewardError, match=r"2 of 2 episodes have no reward.*Set judge, which judges assertions, or"):
        _stage(tmp_path, WAITING, WAITING)
