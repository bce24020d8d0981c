"""Settings of the curriculum: training scenarios by their success so far."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from grpo.config.base import AppliesWhen, Settings


class CurriculumSettings(Settings):
    """Training scenarios by their success so far: most often the ones that neither always nor never succeed.

    Held-out scenarios stay as they are. If the environment verifies no outcome, the run is refused.
    """

    uniform_share: float = Field(default=0.1, gt=0, le=1)
    """Share of each choice that is uniform over the open scenarios, so that none is left out for ever."""
    discount: float = Field(default=0.9, gt=0, le=1)
    """Successes and failures are multiplied by this after each iteration, because the policy changes. 1 keeps all."""
    levels: tuple[str, ...] = ()
    """Categories in the order in which they open. At first only the first one is open, in addition to all categories
    that are not named here."""
    open_at: Annotated[float, AppliesWhen("levels")] = Field(default=0.6, gt=0, lt=1)
    """Success in the last open level at which the next one opens. A level stays open."""

    @model_validator(mode="after")
    def _levels_are_several(self) -> Self:
        if len(self.levels) == 1 or len(set(self.levels)) < len(self.levels):
            raise ValueError(
                f"curriculum levels {list(self.levels)}: name at least two categories, each once, or leave it out"
            )
        return self
