"""Windows of a continuous rollout, with the completion of each group in a fixed order."""

from __future__ import annotations

import pytest

from grpo.errors import BudgetError
from grpo.rollout.windows import Group, GroupDraw, GroupQueue, QueueState, Window
from tests.doubles import make_trajectory

DRAWS = (("a", "b"), ("c", "d"), ("e", "f"), ("g", "h"), ("a", "b"))
"""Two scenarios in each iteration."""


def _queue(**changes: object) -> GroupQueue:
    settings = {"group_size": 2, "max_staleness": 1, "windows": 4, "error_budget": 0.0, "policy_hash": "v0", **changes}
    return GroupQueue(lambda index: DRAWS[index], **settings)  # type: ignore[arg-type]


def _names(groups: list[Group]) -> str:
    return " ".join(group.draw.scenario_id for group in groups)


def _finish(queue: GroupQueue, group: Group, *policies: str, stop: str = "terminated") -> None:
    """Finish the samples of a group, of which the first token is from these policies."""
    for sample, policy in enumerate(policies):
        trajectory = make_trajectory(
            scenario_id=group.draw.scenario_id, sample=sample, policy_hash=policy, stop=stop, error=stop
        )
        queue.complete(group, sample, trajectory)


def _close(queue: GroupQueue, **in_progress: str) -> Window | None:
    """Close the next window. `in_progress` has the policy of the first token of a scenario's unfinished episodes."""
    return queue.close(lambda group, sample: in_progress.get(group.draw.scenario_id))


def _scenarios(window: Window | None) -> str:
    assert window is not None
    return " ".join(dict.fromkeys(trajectory.scenario_id for trajectory in window.trajectories))


def test_a_window_has_the_groups_that_are_completed_first():
    """max_staleness 1: four groups begin. d and b are completed first, so window 0 is b d, in the order of beginning.

    After the update, version 1 lets two more groups begin. c is in window 1 although it began under version 0.
    """
    queue = _queue()
    a, b, c, d = queue.begin()
    assert _names([a, b, c, d]) == "a b c d"
    assert queue.begin() == []
    _finish(queue, d, "v0", "v0")
    assert _close(queue) is None
    _finish(queue, b, "v0", "v0")
    first = _close(queue, a="v0", c="v0")
    assert (_scenarios(first), first and first.staleness) == ("b d", (0, 0, 0, 0))
    assert queue.begin() == []
    queue.publish("v1")
    e, f = queue.begin()
    assert _names([e, f]) == "e f"
    _finish(queue, e, "v1", "v1")
    _finish(queue, c, "v0", "v1")
    second = _close(queue, a="v0", f="v1")
    assert (_scenarios(second), second and second.staleness) == ("c e", (1, 0, 0, 0))


def test_staleness_0_takes_the_groups_of_one_iteration_after_the_other():
    """Nothing begins before the next version, so window k is what iteration k draws, in the order of the draws."""
    queue = _queue(max_staleness=0)
    for index in range(4):
        groups = queue.begin()
        assert _names(groups) == " ".join(DRAWS[index])
        for group in reversed(groups):
            assert _close(queue) is None
            _finish(queue, group, f"v{index}", f"v{index}")
        window = _close(queue)
        assert (_scenarios(window), window and window.staleness) == (" ".join(DRAWS[index]), (0, 0, 0, 0))
        assert queue.begin() == []
        queue.publish(f"v{index + 1}")
    assert queue.is_over


def test_a_rollout_begins_no_more_groups_than_the_run_trains_on():
    """With 2 windows and max_staleness 4, four groups are enough."""
    queue = _queue(max_staleness=4, windows=2)
    assert _names(queue.begin()) == "a b c d"


def test_episodes_that_would_be_too_stale_for_the_next_window_are_dropped():
    """max_staleness 1: when window 1 is closed, window 2 may have nothing of version 0, as 2 - 0 > 1.

    a has two unfinished episodes of version 0, so both are dropped, and the group with them. Another group takes its
    place. f was begun under version 1 and stays.
    """
    queue = _queue()
    a, b, c, d = queue.begin()
    for group in (b, c):
        _finish(queue, group, "v0", "v0")
    first = _close(queue, a="v0", d="v0")
    assert first is not None
    assert first.dropped == ()
    queue.publish("v1")
    e, _ = queue.begin()
    _finish(queue, d, "v0", "v1")
    _finish(queue, e, "v1", "v1")
    second = _close(queue, a="v0", f="v1")
    assert second is not None
    assert second.dropped == ((a, 0), (a, 1))
    queue.publish("v2")
    assert _names(queue.begin()) == "g h a"  # g h are iteration 3, and the next draw replaces the dropped group
    metrics = second.metrics(busy_share=0.5)
    assert (metrics.staleness_mean, metrics.staleness_max, metrics.dropped_episodes) == (0.25, 1, 2)


def test_a_group_keeps_its_other_episodes_if_two_remain():
    """Sample 0 of a is of version 0, and 1 and 2 are of version 1: two remain, and the group is then complete."""
    queue = _queue(group_size=3)
    a, b, c, d = queue.begin()
    for group in (b, c):
        _finish(queue, group, "v0", "v0", "v0")
    assert _close(queue) is not None
    queue.publish("v1")
    e, f = queue.begin()
    for sample in (1, 2):
        queue.complete(a, sample, make_trajectory(scenario_id="a", sample=sample, policy_hash="v1"))
    for group in (d, e):
        _finish(queue, group, "v0", "v0", "v1")
    second = _close(queue, a="v0")
    assert second is not None
    assert second.dropped == ((a, 0),)
    queue.complete(a, 0, make_trajectory(scenario_id="a", policy_hash="v0"))  # it ended before it was cancelled
    _finish(queue, f, "v1", "v1", "v1")
    third = _close(queue)
    assert third is not None
    assert [(t.scenario_id, t.sample) for t in third.trajectories] == [
        ("a", 1), ("a", 2), ("f", 0), ("f", 1), ("f", 2),
    ]  # fmt: skip


def test_an_episode_without_a_token_is_not_stale():
    """Its first token will be of the newest policy."""
    queue = _queue()
    _, b, c, d = queue.begin()
    for group in (b, c):
        _finish(queue, group, "v0", "v0")
    assert _close(queue) is not None
    queue.publish("v1")
    e, _ = queue.begin()
    for group in (d, e):
        _finish(queue, group, "v0", "v1")
    second = _close(queue)
    assert second is not None
    assert second.dropped == ()


def test_an_update_that_changes_nothing_makes_no_episode_older():
    """Versions 0 and 1 have the same hash, so an episode of version 0 has staleness 0 in window 1."""
    queue = _queue()
    groups = queue.begin()
    for group in groups:
        _finish(queue, group, "v0", "v0")
    assert _close(queue) is not None
    queue.publish("v0")
    second = _close(queue)
    assert second is not None
    assert second.staleness == (0, 0, 0, 0)


def test_a_window_has_a_scenario_once():
    """The schedule draws a twice. The second group of a waits for the next window, although it is complete."""
    queue = GroupQueue(
        lambda index: (("a", "b"), ("a", "c"), ("b", "c"))[index],
        group_size=2,
        max_staleness=1,
        windows=3,
        error_budget=0.0,
        policy_hash="v0",
    )
    a, b, a_again, c = queue.begin()
    _finish(queue, a_again, "v0", "v0")
    _finish(queue, a, "v0", "v0")
    assert _close(queue) is None
    _finish(queue, c, "v0", "v0")
    window = _close(queue)
    assert window is not None
    assert window.trajectories == tuple(t for t in (*a_again.episodes.values(), *c.episodes.values()) if t)
    assert window.state.unfinished == (a.draw, b.draw)


def test_a_window_is_smaller_if_only_groups_of_the_same_scenario_are_left():
    """Two groups of a, nothing in progress and nothing to begin: waiting for another scenario would never end."""
    queue = GroupQueue(
        lambda index: (("a", "b"), ("c", "d"))[index],
        group_size=2,
        max_staleness=0,
        windows=2,
        error_budget=0.0,
        policy_hash="v1",
        window=1,
        state=QueueState(
            unfinished=(GroupDraw(iteration=0, scenario_id="a"), GroupDraw(iteration=1, scenario_id="a")), iteration=2
        ),
    )
    first, second = queue.begin()
    _finish(queue, second, "v1", "v1")
    assert _close(queue) is None
    _finish(queue, first, "v1", "v1")
    window = _close(queue)
    assert window is not None
    assert len(window.trajectories) == 2


def test_another_process_begins_again_with_the_groups_that_were_not_finished():
    """After window 0, c and d are unfinished. They come first, then the schedule goes on with iteration 2."""
    queue = _queue()
    a, b, *_ = queue.begin()
    for group in (a, b):
        _finish(queue, group, "v0", "v0")
    window = _close(queue)
    assert window is not None
    again = _queue(policy_hash="v1", window=1, state=QueueState.model_validate_json(window.state.model_dump_json()))
    groups = again.begin()
    assert _names(groups) == "c d e f"
    assert [group.draw.iteration for group in groups] == [1, 1, 2, 2]
    for group in groups[:2]:
        _finish(again, group, "v1", "v1")
    second = _close(again)
    assert second is not None
    assert (second.index, second.staleness) == (1, (0, 0, 0, 0))


def test_too_many_failed_episodes_end_the_rollout():
    """Budget 25 % of the 8 episodes in progress: two may fail, the third is one too many."""
    queue = _queue(error_budget=0.25)
    a, b, *_ = queue.begin()
    _finish(queue, a, "v0", "v0", stop="failed")
    with pytest.raises(BudgetError, match=r"3 of 8 episodes have failed, more than rollout\.error_budget 25%"):
        _finish(queue, b, "v0", stop="failed")


def test_failures_of_a_closed_window_count_no_longer():
    """One of 8 episodes fails, then one of the 4 that are left. Both would be too many for a budget of 25 %."""
    queue = _queue(error_budget=0.25)
    a, b, c, _ = queue.begin()
    _finish(queue, a, "v0", stop="failed")
    queue.complete(a, 1, make_trajectory(scenario_id="a", sample=1, policy_hash="v0"))
    _finish(queue, b, "v0", "v0")
    assert _scenarios(_close(queue)) == "a b"
    _finish(queue, c, "v0", stop="failed")
    with pytest.raises(BudgetError, match="2 of 4 episodes have failed"):
        queue.complete(c, 1, make_trajectory(scenario_id="c", sample=1, policy_hash="v0", stop="failed", error="again"))
