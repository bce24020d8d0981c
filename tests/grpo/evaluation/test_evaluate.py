from __future__ import annotations

import numpy as np
import pytest

from grpo.config.evaluation import EvaluationSettings, GateSettings
from grpo.errors import DataError
from grpo.evaluation.conversations import choose_pairs
from grpo.evaluation.document import Evaluation
from grpo.evaluation.evaluate import evaluate
from grpo.evaluation.gates import gate
from grpo.evaluation.statistics import compare, interval
from grpo.trajectories import Outcome, Trajectory
from tests.doubles import make_trajectory

SETTINGS = EvaluationSettings(resamples=500)


def _played(
    scenario: str, success: bool | None, *, category: str = "a", tokens: int = 4, **changes: object
) -> Trajectory:
    return make_trajectory(
        scenario_id=scenario,
        category=category,
        token_ids=np.zeros(tokens, dtype=np.int32),
        loss_mask=np.ones(tokens, dtype=np.bool_),
        sampler_logprobs=np.zeros(tokens, dtype=np.float32),
        outcome=None if success is None else Outcome(success=success),
        **changes,
    )


def _evaluate(before: list[Trajectory], after: list[Trajectory]) -> Evaluation:
    return evaluate(before, after, SETTINGS, metric="success", kl_to_base=0.1, seed=0)


def _side(results: str, **changes: object) -> list[Trajectory]:
    """'101' → scenarios 0, 1, 2 with success, failure, success."""
    return [_played(str(k), r == "1", **changes) for k, r in enumerate(results)]  # type: ignore[arg-type]


def test_an_interval_of_equal_values_is_a_point():
    """Nothing varies, so nothing is uncertain."""
    found = interval(np.full(10, 0.5), confidence=0.95, resamples=200, seed=0)
    assert (found.mean, found.low, found.high, found.count) == (0.5, 0.5, 0.5, 10)


def test_an_interval_has_the_width_of_its_standard_error():
    """Half ones of 400: ± 1.96 · sqrt(.25/400) = ± .049"""
    found = interval(np.repeat([0.0, 1.0], 200), confidence=0.95, resamples=4000, seed=0)
    assert found.low == pytest.approx(0.451, abs=0.006)
    assert found.high == pytest.approx(0.549, abs=0.006)


def test_the_difference_is_paired():
    """Both vary wildly between scenarios and by exactly .1 within each: the difference is certain."""
    champion = np.linspace(0, 0.9, 50)
    found = compare("all", champion, champion + 0.1, confidence=0.95, resamples=200, seed=0).difference
    assert (found.low, found.high) == (pytest.approx(0.1), pytest.approx(0.1))


def test_every_heldout_scenario_is_counted():
    """1 of 4 before, 3 of 4 after: +.5"""
    found = _evaluate(_side("1000"), _side("1110"))
    assert (found.overall.champion.mean, found.overall.candidate.mean) == (0.25, 0.75)
    assert found.overall.difference.mean == 0.5
    assert found.episodes == 4


def test_a_failed_episode_is_no_success():
    """Failing does not take a scenario out of the count."""
    after = [_played("0", None, stop="failed"), _played("1", True)]
    found = _evaluate(_side("11"), after)
    assert found.overall.candidate.mean == 0.5
    assert found.failed_share == 0.5


def test_two_different_exams_are_not_compared():
    """Another seed is another sample."""
    with pytest.raises(DataError, match="same scenarios, samples and seeds"):
        _evaluate(_side("10"), _side("10", seed=9))


def _gates(found: Evaluation, **settings: float) -> dict[str, bool]:
    return {check.name: check.passed for check in gate(found, GateSettings(**settings)).checks}


def test_a_clear_gain_is_promoted():
    """20 scenarios from none to all."""
    decision = gate(_evaluate(_side("0" * 20), _side("1" * 20)), GateSettings())
    assert decision.verdict == "promote"
    assert "+" not in decision.reason
    assert "1.000" in decision.reason


def test_no_gain_is_refused_with_the_number():
    """The lower bound 0 is not above the margin 0."""
    decision = gate(_evaluate(_side("10" * 5), _side("10" * 5)), GateSettings())
    assert decision.verdict == "refuse"
    assert "improvement is 0, must be > 0" in decision.reason


def test_a_margin_that_is_not_cleared_refuses():
    """A gain of 1 does not clear a margin of 1.5."""
    found = _evaluate(_side("0" * 9), _side("1" * 9))
    assert _gates(found, margin=1.5)["improvement"] is False


def test_a_category_may_not_pay_for_the_others():
    """b falls from 1 to 0 while a rises: refused by name."""
    before = [*_side("0" * 18), *[_played(f"b{k}", True, category="b") for k in range(2)]]
    after = [*_side("1" * 18), *[_played(f"b{k}", False, category="b") for k in range(2)]]
    decision = gate(_evaluate(before, after), GateSettings())
    assert decision.verdict == "refuse"
    assert "worst category is -1" in decision.reason


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"max_kl": 0.05}, "KL to the base"), ({"max_length_ratio": 1.5}, "length")],
)
def test_every_budget_is_a_gate(settings: dict[str, float], name: str):
    """KL .1 and twice the tokens, each against a bound below it."""
    found = _evaluate(_side("0" * 9), _side("1" * 9, tokens=8))
    assert all(_gates(found).values())
    assert _gates(found, **settings)[name] is False


def test_truncated_episodes_count_against_the_candidate():
    """Half cut off is more than 2 %."""
    after = [*_side("11"), *[_played(str(k), True, stop="truncated") for k in (2, 3)]]
    assert _gates(_evaluate(_side("0000"), after))["failed episodes"] is False


def test_shown_conversations_include_a_loss_when_there_is_one():
    """A reader sees what got worse, too."""
    pairs = choose_pairs(_side("0000100000"), _side("1111011111"), lambda ids: "x", count=3)
    changes = [(p.champion.success, p.candidate.success) for p in pairs]
    assert (False, True) in changes
    assert (True, False) in changes
