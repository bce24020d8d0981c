from __future__ import annotations

import pytest

from grpo.rollout.collect import schedule

ABCDE = list("abcde")


def test_further_rounds_play_what_the_iteration_has_not():
    """The worked example: c a, then e b, then what is left, then nothing."""
    rounds = [schedule(ABCDE, iteration=0, count=2, seed=252, round=k) for k in range(4)]
    assert rounds == [["c", "a"], ["e", "b"], ["d"], []]


@pytest.mark.parametrize("iteration", range(6))
@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_the_rounds_of_an_iteration_play_every_scenario_once(iteration: int, count: int):
    """No repeats and none left out, also where round 0 lies on the border of two shuffles."""
    played = [name for k in range(6) for name in schedule(ABCDE, iteration=iteration, count=count, seed=1, round=k)]
    assert sorted(played) == ABCDE


def test_further_rounds_have_an_order_for_each_seed_and_iteration():
    """Said again it is the same; another seed, and an iteration that starts alike, go on otherwise."""
    names = [f"s{k}" for k in range(50)]

    def further(seed: int, iteration: int) -> list[str]:
        return schedule(names, iteration=iteration, count=10, seed=seed, round=1)

    assert further(3, 0) == further(3, 0)
    assert len({tuple(further(seed, iteration)) for seed in (3, 4) for iteration in (0, 5)}) == 4
