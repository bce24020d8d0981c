"""Levels of generated games and tasks, and the number of scenarios of each level in each split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pydantic import Field

from grpo.config.base import Settings
from grpo.environments.seeded_worlds import Part
from grpo.errors import DataError


class Level(Settings):
    """A generator of a package with its options, and its number of scenarios. A subclass names the generator.

    It may have a name of its own, because one generator has several levels by its options.
    """

    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the generator, such as `max_number`."""
    train: int = Field(default=0, ge=0)
    """Scenarios that the policy is trained on. A level with 0 is held out as a whole."""
    heldout: int = Field(default=0, ge=0)
    """Scenarios that it is evaluated on."""
    name: str = ""
    """Category of the results. If empty, it is made from the generator."""

    @property
    def generator(self) -> str:
        """Category of the results without a name."""
        raise NotImplementedError

    @property
    def category(self) -> str:
        """Category of its scenarios."""
        return self.name or self.generator


L = TypeVar("L", bound=Level)


def draw_splits(
    levels: Sequence[L], draw: Callable[[L, Part, int, set[str]], Iterator[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """Draw the training and held-out scenarios of each level.

    `draw` yields this many scenarios of a level. It leaves out the digests in its last argument, and adds the new ones.
    Raises `DataError` if two levels with different options have one category, because the ids and the results of their
    scenarios would be mixed.
    """
    drawn: set[str] = set()
    options: dict[str, dict[str, Any]] = {}
    for level in levels:
        if (other := options.setdefault(level.category, level.options)) != level.options:
            raise DataError(
                f"two levels are called {level.category}, with options {other} and {level.options}. Give one of them a "
                "name of its own"
            )
    for level in levels:
        yield from draw(level, "train", level.train, drawn)
        yield from draw(level, "heldout", level.heldout, drawn)
