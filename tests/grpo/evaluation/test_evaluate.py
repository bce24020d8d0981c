from __future__ import annotations

import numpy as np
import pytest

from grpo.config.evaluation import EvaluationSettings
from grpo.errors import DataError
from grpo.evaluation.conversations import choose_pairs
from grpo.evaluation.document import Evaluation
from grpo.evaluation.evaluate import evaluate
from grpo.evaluation.statistics import compare, highest_likely, interval
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
    assert (found.failed_share, found.truncated_share) == (0.5, 0.0)


def test_what_was_cut_off_and_what_failed_are_counted_apart():
    """One of four is truncated, two failed."""
    after = [
        _played(str(k), False, stop=stop) for k, stop in enumerate(["truncated", "failed", "failed", "terminated"])
    ]
    found = _evaluate(_side("0000"), after)
    assert (found.failed_share, found.truncated_share) == (0.5, 0.25)


def test_few_scenarios_that_agree_are_still_uncertain():
    """-1 -1 with +1 -1 counted beside: mean -.5, variance .75, so -.5 + .8416 · sqrt(.75 / 4) = -.1355"""
    found = highest_likely(np.array([-1.0, -1.0]), confidence=0.8, largest=1.0)
    assert found == pytest.approx(-0.1355, abs=5e-4)


def test_two_different_exams_are_not_compared():
    """Another seed is another sample."""
    with pytest.raises(DataError, match="same scenarios, samples and seeds"):
        _evaluate(_side("10"), _side("10", seed=9))


def test_shown_conversations_include_a_loss_when_there_is_one():
    """A reader sees what got worse, too."""
    pairs = choose_pairs(_side("0000100000"), _side("1111011111"), lambda ids: "x", count=3)
    changes = [(p.champion.success, p.candidate.success) for p in pairs]
    assert (False, True) in changes
    assert (True, False) in changes
