"""Strata of a held-out split: base scenarios, and conversations that callers of the service gave.

Whoever has an API key writes conversations with categories and expected outcomes of their choice. A gain on them must
not hide a loss on the base scenarios, and a few keys together may not decide a promotion. Therefore both strata are
judged apart.
A split without conversations, as in a plain run of `train`, has one stratum, and nothing here changes its gates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from grpo.scenario import Scenario
from grpo.trajectories import Trajectory

BASE, CONVERSATIONS = "base scenarios", "conversations"
ALL_CATEGORIES = "conversations of every category"
"""The one group of all conversations in comparisons by category, because clients choose their categories."""


@dataclass(frozen=True, slots=True)
class Strata:
    """Conversations of a scenario table, with the keys that sent them."""

    origins: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Hashes of keys by scenario id, of all conversations that were trained on or are held out."""

    @classmethod
    def of(cls, scenarios: Iterable[Scenario]) -> Strata:
        """Read the origins of scenarios."""
        return cls({item.id: item.metadata.origin.keys for item in scenarios if item.metadata.origin is not None})

    @property
    def keys(self) -> frozenset[str]:
        """All keys that sent a conversation."""
        return frozenset(key for keys in self.origins.values() for key in keys)

    def is_base(self, trajectory: Trajectory) -> bool:
        """True for an episode of a base scenario."""
        return trajectory.scenario_id not in self.origins

    def name(self, trajectory: Trajectory) -> str:
        """Name of the stratum of an episode."""
        return BASE if self.is_base(trajectory) else CONVERSATIONS

    def category(self, trajectory: Trajectory) -> str:
        """Category of an episode. All conversations are one group."""
        return trajectory.category if self.is_base(trajectory) else ALL_CATEGORIES

    def base(self, episodes: Iterable[Trajectory]) -> list[Trajectory]:
        """Episodes of base scenarios."""
        return [trajectory for trajectory in episodes if self.is_base(trajectory)]

    def without_keys(self, episodes: Iterable[Trajectory], keys: Collection[str]) -> list[Trajectory]:
        """Episodes, except the ones of conversations that one of these keys sent."""
        left_out = frozenset(keys)
        return [
            trajectory for trajectory in episodes if left_out.isdisjoint(self.origins.get(trajectory.scenario_id, ()))
        ]


NO_CONVERSATIONS = Strata()
"""Strata of a plain run."""
