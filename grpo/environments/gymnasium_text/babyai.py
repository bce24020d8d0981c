"""Levels of BabyAI as scenarios, and demonstrations of minigrid's bot.

Training, held-out and demonstration worlds have seeds of their own ranges. Seeds may make the same world, so that the
digest of a world says to which split it belongs, and no world is drawn twice: neither training nor demonstrations show
a held-out one. A level with `train: 0` is held out as a whole.

BabyAI: Chevalier-Boisvert et al., arXiv 1810.08272
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any

from pydantic import Field

from grpo.config.base import Settings
from grpo.environments.environment import Environment, EnvironmentState
from grpo.environments.gymnasium_text.environment import GymnasiumTextEnvironment, make_text_env, state_digest
from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenario import Scenario
from grpo.scenarios.split import HELDOUT_SHARE, assign_split

from minigrid.utils.baby_ai_bot import BabyAIBot  # isort: skip

_FIRST_SEED = {"train": 0, "heldout": 1_000_000, "demonstrations": 2_000_000}
_REPEATS = 1_000
"""Worlds in a row that were drawn already or are of the other split, after which a level counts as exhausted."""


class BabyAILevel(Settings):
    """Number of worlds of a level."""

    id: str
    """Id of the environment, such as `BabyAI-GoToLocal-v0`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment, such as `max_steps`."""
    train: int = Field(default=0, ge=0)
    """Worlds that the policy is trained on."""
    heldout: int = Field(default=0, ge=0)
    """Worlds that it is evaluated on."""


def babyai_scenarios(levels: Sequence[BabyAILevel]) -> Iterator[dict[str, Any]]:
    """Records of the levels' scenarios, for a source of kind python. Raises `DataError` for an exhausted level."""
    drawn: set[str] = set()
    for level in levels:
        yield from _draw(level, "train", level.train, drawn)
        yield from _draw(level, "heldout", level.heldout, drawn)


def babyai_demonstrations(levels: Sequence[str], each: int, max_turns: int = 20) -> Iterator[dict[str, Any]]:
    """Conversations in which minigrid's bot completes the mission, `each` of every level, for `sft.demonstrations`.

    An episode that the bot does not complete within `max_turns` is left out and another one drawn.
    """
    environment = GymnasiumTextEnvironment(max_turns=max_turns)
    for id in levels:
        records = _draw(BabyAILevel(id=id), "demonstrations", None, set())
        states = (_play_bot(environment, Scenario.model_validate(record)) for record in records)
        complete = (state for state in states if environment.verify(state).success)
        for state in islice(complete, each):
            yield {"messages": [message.to_template() for message in state.history]}


def _play_bot(environment: Environment, scenario: Scenario) -> EnvironmentState:
    return asyncio.run(play_actions(environment, scenario, bot_actions(scenario)))


def bot_actions(scenario: Scenario) -> list[str]:
    """Actions of minigrid's bot from the start of a scenario to the end of its episode."""
    world = scenario.world
    env = make_text_env(world["id"], world.get("options", {}))
    env.reset(seed=world["seed"])
    bot, action, ended = BabyAIBot(env), None, False
    names: list[str] = []
    while not ended:
        action = bot.replan(action)
        names.append(action.name)
        _, _, terminated, truncated, _ = env.step(action.name)
        ended = terminated or truncated
    return names


async def play_actions(environment: Environment, scenario: Scenario, actions: Iterable[str]) -> EnvironmentState:
    """Last state of an episode in which the agent's turns are these actions, as far as the episode goes."""
    state = await environment.reset(scenario)
    for action in actions:
        if state.done:
            break
        state = (await environment.step(state, Message(role="assistant", content=action))).state
    return state


def _draw(level: BabyAILevel, split: str, number: int | None, drawn: set[str]) -> Iterator[dict[str, Any]]:
    """Draw different worlds of a level. If no number is given, draw without end."""
    env = make_text_env(level.id, level.options)
    side = "heldout" if split == "heldout" else "train"
    drawn_here = repeats = 0
    for seed in count(_FIRST_SEED[split]):
        if drawn_here == number:
            return
        env.reset(seed=seed)
        digest = state_digest(env)
        if digest is None or digest in drawn or assign_split(digest, share=HELDOUT_SHARE) != side:
            repeats += 1
            if repeats == _REPEATS:
                raise DataError(
                    f"level {level.id} has only {drawn_here} different worlds for {split}, and {number} are wanted. "
                    "Lower that number"
                )
            continue
        repeats, drawn_here = 0, drawn_here + 1
        drawn.add(digest)
        name = level.id.removeprefix("BabyAI-")
        options = {"options": level.options} if level.options else {}
        yield {
            "id": f"{name}-{seed}",
            "topic": name,
            "user_responses": [env.unwrapped.mission],
            "world": {"id": level.id, **options, "seed": seed, "digest": digest},
            "metadata": {"category": name, "source": "minigrid", "licence": "MIT", "identity": f"{level.id} {digest}"},
            "split": side,
        }
