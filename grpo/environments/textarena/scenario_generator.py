"""Generator of scenarios and demonstrations from TextArena's games.

`seeded_worlds` draws the worlds, so that neither training nor demonstrations show a held-out one. A level, which is a
game with other options under a `name` of its own, is held out as a whole by `train: 0`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from grpo.environments.levels import Level, draw_splits
from grpo.environments.seeded_worlds import Part, demonstrate, draw_worlds
from grpo.environments.textarena.environment import TextArenaEnvironment
from grpo.environments.textarena.games import ArenaGame
from grpo.environments.textarena.players import player_actions

import textarena  # isort: skip


class ArenaLevel(Level):
    """Number of worlds of a game."""

    game: str
    """Id in TextArena, such as `GuessTheNumber-v0`."""

    @property
    def generator(self) -> str:
        """Id of the game."""
        return self.game


def textarena_scenarios(levels: Sequence[ArenaLevel]) -> Iterator[dict[str, Any]]:
    """Records of the levels' scenarios, for a source of kind python. Raises `DataError` for an exhausted level."""
    return draw_splits(levels, _draw)


def textarena_demonstrations(levels: Sequence[ArenaLevel], each: int, max_turns: int = 20) -> Iterator[dict[str, Any]]:
    """Conversations in which a player of `players` wins, `each` of every level, for `sft.demonstrations`.

    A game that the player does not win within `max_turns` is left out and another one drawn.
    """
    environment = TextArenaEnvironment(max_turns=max_turns)
    for level in levels:
        records = _draw(level, "demonstrations", None, set())
        yield from demonstrate(environment, records, player_actions, each, name=f"game {level.category}")


def _draw(level: ArenaLevel, part: Part, number: int | None, drawn: set[str]) -> Iterator[dict[str, Any]]:
    """Draw different worlds of a level. If no number is given, draw without end."""

    def start(seed: int) -> tuple[str, str]:
        game = ArenaGame(level.game, level.options, seed)
        return game.state_digest(), game.opening

    options = {"options": level.options} if level.options else {}
    for world in draw_worlds(start, part, number, name=f"game {level.category}", drawn=drawn):
        yield {
            "id": f"{level.category}-{world.seed}",
            "topic": level.game,
            "user_responses": [world.opening],
            "world": {"game": level.game, **options, "seed": world.seed, "digest": world.digest},
            "metadata": {
                "category": level.category,
                "source": f"TextArena {textarena.__version__}",
                "licence": "MIT",
                "identity": f"{level.game} {world.digest}",
            },
            "split": world.split,
        }
