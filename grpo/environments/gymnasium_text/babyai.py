"""Levels of BabyAI as scenarios, and demonstrations of minigrid's bot.

`seeded_worlds` draws the worlds, so that neither training nor demonstrations show a held-out one. A level with
`train: 0` is held out as a whole.

BabyAI: Chevalier-Boisvert et al., arXiv 1810.08272
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from grpo.environments.gymnasium_text.environment import GymnasiumTextEnvironment, env_digest, make_text_env
from grpo.environments.levels import Level, draw_splits
from grpo.environments.seeded_worlds import Part, demonstrate, draw_worlds
from grpo.scenario import Scenario

from minigrid.utils.baby_ai_bot import BabyAIBot  # isort: skip


class BabyAILevel(Level):
    """Number of worlds of a level."""

    id: str
    """Id of the environment, such as `BabyAI-GoToLocal-v0`."""

    @property
    def generator(self) -> str:
        """Id without the name of the family."""
        return self.id.removeprefix("BabyAI-")


def babyai_scenarios(levels: Sequence[BabyAILevel]) -> Iterator[dict[str, Any]]:
    """Records of the levels' scenarios, for a source of kind python. Raises `DataError` for an exhausted level."""
    return draw_splits(levels, _draw)


def babyai_demonstrations(levels: Sequence[str], each: int, max_turns: int = 20) -> Iterator[dict[str, Any]]:
    """Conversations in which minigrid's bot completes the mission, `each` of every level, for `sft.demonstrations`.

    An episode that the bot does not complete within `max_turns` is left out and another one drawn.
    """
    environment = GymnasiumTextEnvironment(max_turns=max_turns)
    for id in levels:
        records = _draw(BabyAILevel(id=id), "demonstrations", None, set())
        yield from demonstrate(environment, records, bot_actions, each, name=f"level {id}")


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


def _draw(level: BabyAILevel, part: Part, number: int | None, drawn: set[str]) -> Iterator[dict[str, Any]]:
    """Draw different worlds of a level. If no number is given, draw without end."""
    env = make_text_env(level.id, level.options)
    options = {"options": level.options} if level.options else {}

    def start(seed: int) -> tuple[str | None, str]:
        env.reset(seed=seed)
        return env_digest(env), env.unwrapped.mission

    for world in draw_worlds(start, part, number, name=f"level {level.id}", drawn=drawn):
        yield {
            "id": f"{level.category}-{world.seed}",
            "topic": level.category,
            "user_responses": [world.opening],
            "world": {"id": level.id, **options, "seed": world.seed, "digest": world.digest},
            "metadata": {
                "category": level.category,
                "source": "minigrid",
                "licence": "MIT",
                "identity": f"{level.id} {world.digest}",
            },
            "split": world.split,
        }
