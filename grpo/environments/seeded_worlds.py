"""Worlds that a package generates from seeds, without repetition, and episodes of given actions in them.

Training, evaluation and demonstrations draw seeds from separate ranges. That does not keep them apart, because two
seeds may make the same world. So the digest of a world, and not its seed, decides to which split the world belongs, and
a world that was drawn before is skipped. No held-out world therefore appears in training or in a demonstration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, Literal, NamedTuple

from grpo.environments.environment import Environment, EnvironmentState
from grpo.environments.text_game import NoWorldError
from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenario import Scenario
from grpo.scenarios.split import HELDOUT_SHARE, assign_split

Part = Literal["train", "heldout", "demonstrations"]

_FIRST_SEED: dict[Part, int] = {"train": 0, "heldout": 1_000_000, "demonstrations": 2_000_000}
_REPEATS = 1_000
"""Worlds in a row that are of no use, after which a game counts as exhausted."""


class World(NamedTuple):
    """A world that a seed makes."""

    seed: int
    digest: str
    opening: str
    """Text that describes it to a reader of the scenario."""
    split: Literal["train", "heldout"]


def draw_worlds(
    start: Callable[[int], tuple[str | None, str]], part: Part, number: int | None, *, name: str, drawn: set[str]
) -> Iterator[World]:
    """Draw different worlds of a part. If no number is given, draw without end.

    `start` makes the world of a seed and returns its digest and its opening. `name` is the game's in the error, and
    `drawn` holds the digests that do not come again.

    Raises `DataError` if too few worlds are different.
    """
    side: Literal["train", "heldout"] = "heldout" if part == "heldout" else "train"
    drawn_here = repeats = 0
    for seed in count(_FIRST_SEED[part]):
        if drawn_here == number:
            return
        try:
            digest, opening = start(seed)
        except NoWorldError:
            digest, opening = None, ""
        if digest is None or digest in drawn or assign_split(digest, share=HELDOUT_SHARE) != side:
            repeats += 1
            if repeats == _REPEATS:
                wanted = "more" if number is None else number
                raise DataError(
                    f"{name} has only {drawn_here} different worlds for {part}, and {wanted} are wanted. Lower that "
                    "number"
                )
            continue
        repeats, drawn_here = 0, drawn_here + 1
        drawn.add(digest)
        yield World(seed=seed, digest=digest, opening=opening, split=side)


def demonstrate(
    environment: Environment,
    records: Iterable[dict[str, Any]],
    actions: Callable[[Scenario], Sequence[str]],
    each: int,
    *,
    name: str,
) -> Iterator[dict[str, Any]]:
    """Conversations of the first `each` scenarios in which these actions succeed, for `sft.demonstrations`.

    An episode that does not succeed within the environment's limit of turns is left out, and another one drawn. Raises
    `DataError` if many in a row do not.
    """
    complete = failures = 0
    for record in records:
        if complete == each:
            return
        scenario = Scenario.model_validate(record)
        state = asyncio.run(play_actions(environment, scenario, actions(scenario)))
        outcome = environment.verify(state)
        if outcome is None or not outcome.success:
            failures += 1
            if failures == _REPEATS:
                raise DataError(
                    f"{name}: {failures} demonstrations in a row do not succeed within the limit of turns. Raise "
                    "max_turns of the demonstrations"
                )
            continue
        failures, complete = 0, complete + 1
        yield {"messages": [message.to_template() for message in state.history]}


async def play_actions(environment: Environment, scenario: Scenario, actions: Iterable[str]) -> EnvironmentState:
    """Last state of an episode in which the agent's turns are these actions, as far as the episode goes."""
    state = await environment.reset(scenario)
    for action in actions:
        if state.done:
            break
        state = (await environment.step(state, Message(role="assistant", content=action))).state
    return state
