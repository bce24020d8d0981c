"""Generator of scenarios and demonstrations from TextWorld's makers.

`seeded_worlds` draws the worlds, so that neither training nor demonstrations show a held-out one. A level, which is a
maker with other options under a `name` of its own, is held out as a whole by `train: 0`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from grpo.environments.levels import Level, draw_splits
from grpo.environments.seeded_worlds import Part, demonstrate, draw_worlds
from grpo.environments.textworld.environment import TextWorldEnvironment, game_of
from grpo.environments.textworld.games import TextWorldGame

import textworld  # isort: skip


class TextWorldLevel(Level):
    """Number of worlds of a maker."""

    maker: str
    """`treasure_hunter` or `quest`."""
    options: dict[str, int]
    """Options of the maker: `level` of the first, `nb_rooms`, `nb_objects` and `quest_length` of the second."""

    @property
    def generator(self) -> str:
        """The maker with its options."""
        return "-".join((self.maker, *(str(value) for _, value in sorted(self.options.items()))))


def textworld_scenarios(levels: Sequence[TextWorldLevel]) -> Iterator[dict[str, Any]]:
    """Records of the levels' scenarios, for a source of kind python. Raises `DataError` for an exhausted level."""
    return draw_splits(levels, _draw)


def textworld_demonstrations(
    levels: Sequence[TextWorldLevel], each: int, max_turns: int = 20
) -> Iterator[dict[str, Any]]:
    """Conversations in which TextWorld's walkthrough wins, `each` of every level, for `sft.demonstrations`.

    A game whose walkthrough is longer than `max_turns` is left out and another one drawn.
    """
    environment = TextWorldEnvironment(max_turns=max_turns)
    for level in levels:
        records = _draw(level, "demonstrations", None, set())
        yield from demonstrate(
            environment, records, lambda scenario: game_of(scenario).walkthrough, each, name=f"level {level.category}"
        )


def _draw(level: TextWorldLevel, part: Part, number: int | None, drawn: set[str]) -> Iterator[dict[str, Any]]:
    """Draw different worlds of a level. If no number is given, draw without end."""

    def start(seed: int) -> tuple[str, str]:
        game = TextWorldGame(level.maker, level.options, seed)
        return game.state_digest(), game.opening

    for world in draw_worlds(start, part, number, name=f"level {level.category}", drawn=drawn):
        yield {
            "id": f"{level.category}-{world.seed}",
            "topic": level.maker,
            "user_responses": [world.opening],
            "world": {"maker": level.maker, "options": level.options, "seed": world.seed, "digest": world.digest},
            "metadata": {
                "category": level.category,
                "source": f"TextWorld {textworld.__version__}",
                "licence": "MIT",
                "identity": f"{level.maker} {world.digest}",
            },
            "split": world.split,
        }
