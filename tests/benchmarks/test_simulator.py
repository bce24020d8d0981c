"""Schedules of the simulator that were worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import pytest

from tests.benchmarks.simulated_servers import Clock, Episode, Rollout, Server, SimulatedTurn, Speed
from tests.benchmarks.simulator import Plan, Simulation


def _speed(*, slots: int = 8, further_s: float = 0.0, request_s: float = 0.0, prompt_token_s: float = 0.0) -> Speed:
    return Speed(slots=slots, step_s=1.0, further_s=further_s, request_s=request_s, prompt_token_s=prompt_token_s)


def _episode(*turns: tuple[int, float], prompt: int = 0) -> Episode:
    return tuple(SimulatedTurn(prompt=prompt, tokens=tokens, wait_s=wait_s) for tokens, wait_s in turns)


def _ends(speed: Speed, turns: Sequence[tuple[float, int, int]]) -> list[float]:
    """Ends of turns of one server. Each is the time at which it is asked for, tokens to read, tokens to generate."""
    clock = Clock()
    server, ends = Server(clock, speed), [0.0] * len(turns)

    def ask(index: int, reads: int, tokens: int) -> None:
        def done() -> None:
            ends[index] = clock.now

        server.ask(reads, tokens, done)

    for index, (time, reads, tokens) in enumerate(turns):
        clock.after(time, lambda index=index, reads=reads, tokens=tokens: ask(index, reads, tokens))  # type: ignore[misc]
    clock.run(lambda: all(ends))
    return ends


def test_turns_share_the_steps_of_their_server():
    """At 1 s the first has a token, and steps of two turns take 1.5 s. At 2.5 s both have one more, and one is left."""
    assert _ends(_speed(further_s=0.5), [(0.0, 0, 2), (1.0, 0, 2)]) == [2.5, 3.5]


def test_a_prompt_is_read_while_all_other_turns_wait():
    """The second reads from 1 to 1 + 1 + 2 * 0.5 = 3. Then both need one token, and steps cost the same for two."""
    speed = _speed(request_s=1.0, prompt_token_s=0.5)
    assert _ends(speed, [(0.0, 0, 1)]) == [2.0]
    assert _ends(speed, [(0.0, 0, 1), (1.0, 2, 1)]) == [4.0, 4.0]


def test_a_turn_beyond_the_slots_waits_for_one():
    """Two tokens, then one."""
    assert _ends(_speed(slots=1), [(0.0, 0, 2), (0.5, 0, 1)]) == [2.0, 3.0]


@pytest.mark.parametrize(("changes", "latency_s", "end"), [(False, 0.0, 11.0), (True, 0.0, 16.0), (True, 0.5, 17.0)])
def test_changed_weights_read_the_whole_conversation(changes: bool, latency_s: float, end: float):
    """Turn 1 reads 2 and generates 3 tokens until 5, its tool answers at 6. Turn 2 reads 2 tokens, or 2 + 5.

    Each of both turns waits for its latency."""
    clock = Clock()
    rollout = Rollout(clock, replace(_speed(prompt_token_s=1.0), latency_s=latency_s), servers=1, concurrency=1)
    ended: list[float] = []
    rollout.begin(_episode((3, 1.0), (3, 0.0), prompt=2), lambda run: ended.append(clock.now))
    clock.after(5.5, lambda: setattr(rollout, "version", int(changes)))
    clock.run(lambda: bool(ended))
    assert ended == [end]


def test_stages_on_two_servers_with_three_episodes():
    """Server 0 has a and c. Two turns share its steps of 2 s, so c ends at 2, and the first turn of a at 3. Its tool
    answers at 6, and it ends at 8. Server 1 has b until 4.

        rollout 0..8   update 8..12, 1 + 3 * 1   load 12..14   rollout 14..22   update 22..26
        server 0 has turns for 3 + 2 of 14 s, and 2 * 2 + 1 + 2 seconds of turns; server 1 has one for 4 s
    """
    episodes = [_episode((2, 3.0), (2, 0.0)), _episode((4, 0.0)), _episode((1, 0.0))]
    plan = Plan(
        mode="stages",
        servers=2,
        speed=_speed(further_s=1.0),
        groups=1,
        group_size=3,
        concurrency=3,
        update_s=1.0,
        episode_update_s=1.0,
        load_s=2.0,
        updates=2,
    )
    simulation = Simulation(plan, cycle(episodes))
    outcome = simulation.run()
    assert simulation.ends == [12.0, 26.0]
    assert outcome.update_s == 14.0
    assert outcome.serving == pytest.approx(9 / 28)
    assert outcome.turns_at_once == pytest.approx(11 / 9)
    assert outcome.training == pytest.approx(4 / 14)
    assert (outcome.staleness, outcome.dropped) == (0.0, 0.0)


def test_episodes_beyond_the_concurrency_begin_when_one_ends():
    """One at a time: 2, then 4, then 1 second, and an update of 1 s."""
    episodes = [_episode((2, 0.0)), _episode((4, 0.0)), _episode((1, 0.0))]
    plan = Plan(
        mode="stages",
        servers=2,
        speed=_speed(),
        groups=1,
        group_size=3,
        concurrency=1,
        update_s=1.0,
        episode_update_s=0.0,
        load_s=0.0,
        updates=2,
    )
    simulation = Simulation(plan, cycle(episodes))
    simulation.run()
    assert simulation.ends == [8.0, 16.0]


def test_a_continuous_rollout_trains_on_the_groups_that_are_complete_first():
    """max_staleness 1, a group of two episodes for each update of 3 s. Group 1 has an episode of 99 s.

    0    groups 0 and 1 begin           7    window 1 is group 2 (staleness 0). Window 2 may have nothing of
    2    window 0 is group 0                 version 0, so both episodes of group 1 are dropped. Group 3 begins
    5    update 0 ends, group 2 begins  9    window 2 is group 3 (staleness 2 - 1), which waits for update 1
                                        10   update 1 ends          13   update 2 ends
    """
    short, long = _episode((2, 0.0)), _episode((99, 0.0))
    plan = Plan(
        mode="continuous",
        servers=1,
        speed=_speed(),
        groups=1,
        group_size=2,
        concurrency=99,
        max_staleness=1,
        update_s=3.0,
        episode_update_s=0.0,
        load_s=0.0,
        updates=3,
        ahead=9,
    )
    simulation = Simulation(plan, iter([short, short, short, long, *[short] * 8]))
    outcome = simulation.run()
    assert simulation.ends == [5.0, 10.0, 13.0]
    assert outcome.update_s == 4.0
    assert outcome.staleness == 0.5
    assert outcome.dropped == pytest.approx(2 / (2 + 4))
    assert outcome.training == pytest.approx(6 / 8)


def test_new_weights_reach_the_rollout_when_they_are_loaded():
    """max_staleness 0: the next group begins when the weights are there, 2 s after the update, as in stages."""
    plan = Plan(
        mode="continuous",
        servers=1,
        speed=_speed(),
        groups=1,
        group_size=2,
        concurrency=99,
        update_s=3.0,
        episode_update_s=0.0,
        load_s=2.0,
        updates=3,
        ahead=9,
    )
    simulation = Simulation(plan, cycle([_episode((2, 0.0))]))
    assert simulation.run().staleness == 0
    assert simulation.ends == [5.0, 12.0, 19.0]


def test_versions_are_loaded_one_after_the_other():
    """max_staleness 1. Loading takes 4 s and an update 3 s, so the versions 1 and 2 are there at 9 and 13.

    0   groups 0 and 1 begin           5   update 0 ends       9   group 2 begins, until 11    14   update 2 ends
    2   both complete two windows      8   update 1 ends      13   group 3 begins, until 15    18   update 3 ends
    """
    plan = Plan(
        mode="continuous",
        servers=1,
        speed=_speed(),
        groups=1,
        group_size=2,
        concurrency=99,
        max_staleness=1,
        update_s=3.0,
        episode_update_s=0.0,
        load_s=4.0,
        updates=4,
        ahead=9,
    )
    simulation = Simulation(plan, cycle([_episode((2, 0.0))]))
    simulation.run()
    assert simulation.ends == [5.0, 8.0, 14.0, 18.0]
