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
from grpo.retraining.triggers import ServedVersion, TriggerInputs, check_trigger, check_triggers

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SERVING = ServedVersion(name="desk/3", registered=NOW - timedelta(days=12))


def inputs(**changes: object) -> TriggerInputs:
    fields: dict[str, object] = {"serving": SERVING, "now": NOW, "new_conversations": 0, **changes}
    return TriggerInputs(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("new_conversations", "fired"), [(199, False), (200, True)])
def test_enough_new_conversations_fire(new_conversations: int, fired: bool):
    """The minimum is enough."""
    result = check_trigger(
        NewConversationsSettings(kind="new_conversations", min_conversations=200),
        inputs(new_conversations=new_conversations),
    )
    assert result.fired is fired
    assert result.numbers == {"new": new_conversations, "minimum": 200}


@pytest.mark.parametrize(("days", "fired"), [(12.5, False), (12, True)])
def test_an_old_champion_fires(days: float, fired: bool):
    """Registered 12 days ago."""
    result = check_trigger(AgeSettings(kind="age", days=days), inputs())
    assert result.fired is fired
    assert result.numbers["days"] == 12


def test_a_challenger_resets_the_age():
    """Registered 12 days ago, challenged 3 days ago: the age is 3 days."""
    age = AgeSettings(kind="age", days=10)
    last_evaluated = inputs(last_evaluated=NOW - timedelta(days=3))
    assert check_trigger(age, inputs()).fired
    assert not check_trigger(age, last_evaluated).fired
    assert check_trigger(age, last_evaluated).numbers["days"] == 3
    assert check_trigger(AgeSettings(kind="age", days=3), last_evaluated).fired


def test_topic_drift_fires_and_names_the_words():
    """60 customers with teapots before, 60 with lamps now."""
    trigger = TopicDriftSettings(kind="topic_drift")
    before, now = [f"teapot {k} broke" for k in range(60)], [f"lamp {k} broke" for k in range(60)]
    result = check_trigger(trigger, inputs(known_topics=before, new_topics=now))
    assert result.fired
    assert result.numbers["p"] == 0.001  # 1 of 1000 permutations: the observed one
    assert "lamp" in result.explanation
    assert not check_trigger(
        trigger, inputs(known_topics=before, new_topics=[f"teapot {k} broke" for k in range(60)])
    ).fired


def test_topic_drift_needs_enough_conversations():
    """49 new and 60 known where 50 are needed: not fired, and the explanation has the numbers."""
    result = check_trigger(
        TopicDriftSettings(kind="topic_drift"), inputs(known_topics=["teapot"] * 60, new_topics=["lamp"] * 49)
    )
    assert not result.fired
    assert "49 new conversations and 60" in result.explanation


def test_a_lower_live_reward_fires():
    """Means 0.9 then 0.6 of 50 each: a significant drop of 0.3."""
    settings = LiveRewardSettings(kind="live_reward", min_conversations=100)
    result = check_trigger(settings, inputs(live={"reward": [0.8, 1.0] * 25 + [0.5, 0.7] * 25}))
    assert result.fired
    assert (result.numbers["before"], result.numbers["after"]) == (pytest.approx(0.9), pytest.approx(0.6))


@pytest.mark.parametrize(
    "values",
    [
        [0.8, 1.0] * 25 + [0.86, 0.86] * 25,  # 0.9 to 0.86: less than 0.05
        [0.0, 1.0] * 25 + [1.0, 0.0, 0.0, 1.0, 0.0] * 10,  # 0.5 to 0.4, not significant: p = 0.16
        [0.5, 0.7] * 25 + [0.8, 1.0] * 25,  # a rise
        [0.8, 1.0] * 24 + [0.1, 0.3] * 25,  # 98 where 100 are needed
    ],
)
def test_a_small_insignificant_or_early_drop_does_not_fire(values: list[float]):
    """Each of the three conditions alone prevents the trigger."""
    settings = LiveRewardSettings(kind="live_reward", min_conversations=100)
    assert not check_trigger(settings, inputs(live={"reward": values})).fired


def test_a_drop_between_two_constants_needs_no_test():
    """All ones, then all zeros: without variance."""
    settings = LiveRewardSettings(kind="live_reward", metric="rating", min_conversations=20)
    assert check_trigger(settings, inputs(live={"rating": [1.0] * 10 + [0.0] * 10})).fired
    assert not check_trigger(settings, inputs(live={"rating": [1.0] * 20})).fired


@pytest.mark.parametrize(("high", "fired"), [(0.72, False), (0.69, True)])
def test_a_significantly_lower_held_out_mean_fires(high: float, fired: bool):
    """0.75 at registration, drop 0.05: the upper bound must not exceed 0.70."""
    serving = ServedVersion(name="desk/3", registered=NOW, heldout=0.75, reevaluated=(0.6, high))
    result = check_trigger(HeldoutRewardSettings(kind="heldout_reward", drop=0.05), inputs(serving=serving))
    assert result.fired is fired


def test_a_lower_held_out_mean_fires_until_a_challenger_is_evaluated():
    """0.75 dropped to 0.60; after a challenger the drop alone does not fire again."""
    serving = ServedVersion(name="desk/3", registered=NOW, heldout=0.75, reevaluated=(0.6, 0.65))
    trigger = HeldoutRewardSettings(kind="heldout_reward", drop=0.05)
    assert check_trigger(trigger, inputs(serving=serving)).fired
    assert not check_trigger(trigger, inputs(serving=serving, last_evaluated=NOW)).fired


def test_no_champion_fires_until_a_candidate_was_evaluated():
    """After a refused first version, age decides."""
    settings = (AgeSettings(kind="age", days=5),)
    for days, fired in ((4, [False, False]), (5, [False, True])):
        results = check_triggers(settings, inputs(serving=None, last_evaluated=NOW - timedelta(days=days)))
        assert [result.fired for result in results] == fired


def test_no_champion_is_a_trigger_of_its_own():
    """No other trigger fires then; with a champion it does not fire."""
    settings = (AgeSettings(kind="age", days=1), HeldoutRewardSettings(kind="heldout_reward"))
    assert [result.fired for result in check_triggers(settings, inputs(serving=None))] == [True, False, False]
    assert [result.reason for result in check_triggers(settings, inputs())] == ["no_champion", "age", "heldout_reward"]
    assert not check_triggers(settings, inputs())[0].fired
