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
from grpo.retraining.triggers import ServedVersion, TriggerInputs, check_triggers, make_trigger

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SERVING = ServedVersion(name="desk/3", registered=NOW - timedelta(days=12))


def inputs(**changes: object) -> TriggerInputs:
    fields: dict[str, object] = {"serving": SERVING, "now": NOW, "new_conversations": 0, **changes}
    return TriggerInputs(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("new_conversations", "fired"), [(199, False), (200, True)])
def test_enough_new_conversations_are_a_reason(new_conversations: int, fired: bool):
    """The minimum itself is enough."""
    found = make_trigger(NewConversationsSettings(kind="new_conversations", min_conversations=200)).check(
        inputs(new_conversations=new_conversations)
    )
    assert found.fired is fired
    assert found.numbers == {"new": new_conversations, "minimum": 200}


@pytest.mark.parametrize(("days", "fired"), [(12.5, False), (12, True)])
def test_an_old_champion_is_a_reason(days: float, fired: bool):
    """Registered 12 days ago."""
    found = make_trigger(AgeSettings(kind="age", days=days)).check(inputs())
    assert found.fired is fired
    assert found.numbers["days"] == 12


def test_a_judgement_starts_the_age_anew():
    """Registered 12 days ago, a retraining last_evaluated against it 3 days ago: too old in 9 days, not every night."""
    age = make_trigger(AgeSettings(kind="age", days=10))
    last_evaluated = inputs(last_evaluated=NOW - timedelta(days=3))
    assert age.check(inputs()).fired
    assert not age.check(last_evaluated).fired
    assert age.check(last_evaluated).numbers["days"] == 3
    assert make_trigger(AgeSettings(kind="age", days=3)).check(last_evaluated).fired


def test_topic_drift_fires_and_names_the_words():
    """60 customers with teapots before, 60 with lamps now."""
    reason = make_trigger(TopicDriftSettings(kind="topic_drift"))
    before, now = [f"teapot {k} broke" for k in range(60)], [f"lamp {k} broke" for k in range(60)]
    found = reason.check(inputs(known_topics=before, new_topics=now))
    assert found.fired
    assert found.numbers["p"] == 0.001  # 1 of 1000 ways to give out the labels: the one observed
    assert "lamp" in found.explanation
    assert not reason.check(inputs(known_topics=before, new_topics=[f"teapot {k} broke" for k in range(60)])).fired


def test_too_few_conversations_say_nothing_of_topics():
    """49 against 60 where 50 are needed: no reason, and the sentence says why."""
    found = make_trigger(TopicDriftSettings(kind="topic_drift")).check(
        inputs(known_topics=["teapot"] * 60, new_topics=["lamp"] * 49)
    )
    assert not found.fired
    assert "49 new conversations against 60" in found.explanation


def test_a_fall_of_the_live_reward_is_a_reason():
    """Means 0.9 then 0.6 of 50 each: a fall of 0.3, far more than chance gives."""
    settings = LiveRewardSettings(kind="live_reward", min_conversations=100)
    found = make_trigger(settings).check(inputs(live={"reward": [0.8, 1.0] * 25 + [0.5, 0.7] * 25}))
    assert found.fired
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
    settings = LiveRewardSettings(kind="live_reward", min_conversations=100)
    assert not make_trigger(settings).check(inputs(live={"reward": values})).fired


def test_a_fall_between_two_constants_needs_no_test():
    """All ones, then all zeros: there is no spread to compare with."""
    settings = LiveRewardSettings(kind="live_reward", metric="rating", min_conversations=20)
    assert make_trigger(settings).check(inputs(live={"rating": [1.0] * 10 + [0.0] * 10})).fired
    assert not make_trigger(settings).check(inputs(live={"rating": [1.0] * 20})).fired


@pytest.mark.parametrize(("high", "fired"), [(0.72, False), (0.69, True)])
def test_a_held_out_mean_that_is_surely_lower_is_a_reason(high: float, fired: bool):
    """0.75 at registration, a fall of 0.05 asked for: the upper bound must not exceed 0.70."""
    serving = ServedVersion(name="desk/3", registered=NOW, heldout=0.75, reevaluated=(0.6, high))
    found = make_trigger(HeldoutRewardSettings(kind="heldout_reward", drop=0.05)).check(inputs(serving=serving))
    assert found.fired is fired


def test_a_lower_held_out_mean_is_answered_once():
    """0.75 fell to 0.60, and a retraining was last_evaluated since: the fall alone starts no second one."""
    serving = ServedVersion(name="desk/3", registered=NOW, heldout=0.75, reevaluated=(0.6, 0.65))
    reason = make_trigger(HeldoutRewardSettings(kind="heldout_reward", drop=0.05))
    assert reason.check(inputs(serving=serving)).fired
    assert not reason.check(inputs(serving=serving, last_evaluated=NOW)).fired


def test_nothing_in_service_is_answered_once():
    """A first version that was refused is not trained again every night; age says when."""
    settings = (AgeSettings(kind="age", days=5),)
    for days, fired in ((4, [False, False]), (5, [False, True])):
        results = check_triggers(settings, inputs(serving=None, last_evaluated=NOW - timedelta(days=days)))
        assert [one.fired for one in results] == fired


def test_nothing_in_service_is_a_reason_of_its_own():
    """No other fired then; with a champion it is none."""
    settings = (AgeSettings(kind="age", days=1), HeldoutRewardSettings(kind="heldout_reward"))
    assert [one.fired for one in check_triggers(settings, inputs(serving=None))] == [True, False, False]
    assert [one.reason for one in check_triggers(settings, inputs())] == ["no_champion", "age", "heldout_reward"]
    assert not check_triggers(settings, inputs())[0].fired
