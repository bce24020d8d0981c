from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from grpo.config.retraining import (
    AgeSettings,
    HeldoutRewardSettings,
    LiveRewardSettings,
    NewConversationsSettings,
    TopicDriftSettings,
)
from grpo.retraining.reasons import Serving, Situation, check_all, make_reason

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SERVING = Serving(name="desk/3", registered=NOW - timedelta(days=12))


def situation(**changes: object) -> Situation:
    fields: dict[str, object] = {"serving": SERVING, "now": NOW, "fresh": 0, **changes}
    return Situation(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("fresh", "holds"), [(199, False), (200, True)])
def test_enough_new_conversations_are_a_reason(fresh: int, holds: bool):
    """The minimum itself is enough."""
    found = make_reason(NewConversationsSettings(kind="new_conversations", minimum=200)).check(situation(fresh=fresh))
    assert found.holds is holds
    assert found.numbers == {"new": fresh, "minimum": 200}


@pytest.mark.parametrize(("days", "holds"), [(12.5, False), (12, True)])
def test_an_old_champion_is_a_reason(days: float, holds: bool):
    """Registered 12 days ago."""
    found = make_reason(AgeSettings(kind="age", days=days)).check(situation())
    assert found.holds is holds
    assert found.numbers["days"] == 12


def test_a_judgement_starts_the_age_anew():
    """Registered 12 days ago, a retraining judged against it 3 days ago: too old in 9 days, not every night."""
    age = make_reason(AgeSettings(kind="age", days=10))
    judged = situation(judged=NOW - timedelta(days=3))
    assert age.check(situation()).holds
    assert not age.check(judged).holds
    assert age.check(judged).numbers["days"] == 3
    assert make_reason(AgeSettings(kind="age", days=3)).check(judged).holds


def test_other_topics_are_a_reason_and_the_words_are_named():
    """60 customers with teapots before, 60 with lamps now."""
    reason = make_reason(TopicDriftSettings(kind="topic_drift"))
    before, now = [f"teapot {k} broke" for k in range(60)], [f"lamp {k} broke" for k in range(60)]
    found = reason.check(situation(known_topics=before, new_topics=now))
    assert found.holds
    assert found.numbers["p"] == 0.001  # 1 of 1000 ways to give out the labels: the one observed
    assert "lamp" in found.sentence
    assert not reason.check(situation(known_topics=before, new_topics=[f"teapot {k} broke" for k in range(60)])).holds


def test_too_few_conversations_say_nothing_of_topics():
    """49 against 60 where 50 are needed: no reason, and the sentence says why."""
    found = make_reason(TopicDriftSettings(kind="topic_drift")).check(
        situation(known_topics=["teapot"] * 60, new_topics=["lamp"] * 49)
    )
    assert not found.holds
    assert "49 new conversations against 60" in found.sentence


def test_a_fall_of_the_live_reward_is_a_reason():
    """Means 0.9 then 0.6 of 50 each: a fall of 0.3, far more than chance gives."""
    settings = LiveRewardSettings(kind="live_reward", minimum=100)
    found = make_reason(settings).check(situation(live={"reward": [0.8, 1.0] * 25 + [0.5, 0.7] * 25}))
    assert found.holds
    assert (found.numbers["before"], found.numbers["after"]) == (pytest.approx(0.9), pytest.approx(0.6))


@pytest.mark.parametrize(
    "values",
    [
        [0.8, 1.0] * 25 + [0.86, 0.86] * 25,  # 0.9 to 0.86: less than 0.05
        [0.0, 1.0] * 25 + [1.0, 0.0, 0.0, 1.0, 0.0] * 10,  # 0.5 to 0.4, as chance does: p = 0.16
        [0.5, 0.7] * 25 + [0.8, 1.0] * 25,  # a rise
        [0.8, 1.0] * 24 + [0.1, 0.3] * 25,  # 98 where 100 are needed
    ],
)
def test_a_small_chance_or_early_fall_is_none(values: list[float]):
    """Each of the three conditions alone keeps the reason from holding."""
    settings = LiveRewardSettings(kind="live_reward", minimum=100)
    assert not make_reason(settings).check(situation(live={"reward": values})).holds


def test_a_fall_between_two_constants_needs_no_test():
    """All ones, then all zeros: there is no spread to compare with."""
    settings = LiveRewardSettings(kind="live_reward", measure="rating", minimum=20)
    assert make_reason(settings).check(situation(live={"rating": [1.0] * 10 + [0.0] * 10})).holds
    assert not make_reason(settings).check(situation(live={"rating": [1.0] * 20})).holds


@pytest.mark.parametrize(("high", "holds"), [(0.72, False), (0.69, True)])
def test_a_held_out_mean_that_is_surely_lower_is_a_reason(high: float, holds: bool):
    """0.75 at registration, a fall of 0.05 asked for: the upper bound must not exceed 0.70."""
    serving = Serving(name="desk/3", registered=NOW, heldout=0.75, judged_again=(0.6, high))
    found = make_reason(HeldoutRewardSettings(kind="heldout_reward", drop=0.05)).check(situation(serving=serving))
    assert found.holds is holds


def test_a_lower_held_out_mean_is_answered_once():
    """0.75 fell to 0.60, and a retraining was judged since: the fall alone starts no second one."""
    serving = Serving(name="desk/3", registered=NOW, heldout=0.75, judged_again=(0.6, 0.65))
    reason = make_reason(HeldoutRewardSettings(kind="heldout_reward", drop=0.05))
    assert reason.check(situation(serving=serving)).holds
    assert not reason.check(situation(serving=serving, judged=NOW)).holds


def test_nothing_in_service_is_answered_once():
    """A first version that was refused is not trained again every night; age says when."""
    settings = (AgeSettings(kind="age", days=5),)
    for days, holds in ((4, [False, False]), (5, [False, True])):
        findings = check_all(settings, situation(serving=None, judged=NOW - timedelta(days=days)))
        assert [one.holds for one in findings] == holds


def test_nothing_in_service_is_a_reason_of_its_own():
    """No other holds then; with a champion it is none."""
    settings = (AgeSettings(kind="age", days=1), HeldoutRewardSettings(kind="heldout_reward"))
    assert [one.holds for one in check_all(settings, situation(serving=None))] == [True, False, False]
    assert [one.reason for one in check_all(settings, situation())] == ["no_champion", "age", "heldout_reward"]
    assert not check_all(settings, situation())[0].holds
