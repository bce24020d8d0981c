"""One played episode, token-exact, and the group of its siblings.

turns          P | A1      P | A1 E | A2        (P prompt, A action, E environment's reply)
token_ids      P   A1  E   A2
loss_mask      .   x   .   x                    the policy's own tokens
sampler_logprobs  0   l  0   l                  0 where the policy did not speak
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grpo.errors import DataError
from grpo.messages import Message

Stop = Literal["terminated", "truncated", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A message and the half-open token span [start, stop) that it occupies."""

    message: Message
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the environment verified when the episode ended."""

    success: bool
    """Whether the task is done: the end state is right and nothing false was promised."""
    checks: Mapping[str, bool] = field(default_factory=dict)
    """The single findings that `success` is made of."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The final state of the world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """All turns of one episode, the tokens that were really sampled, and how it ended.

    `terminal_reward` is None while unscored, or when the episode or its reward failed: None is not 0.
    """

    scenario_id: str
    scenario_hash: str
    category: str
    difficulty: str
    sample: int
    seed: int
    policy_hash: str
    renderer_hash: str
    temperature: float
    turns: tuple[Turn, ...]
    token_ids: NDArray[np.int32]  # [tokens]
    loss_mask: NDArray[np.bool_]  # [tokens]
    sampler_logprobs: NDArray[np.float32]  # [tokens]
    stop: Stop
    error: str | None = None
    outcome: Outcome | None = None
    turn_rewards: tuple[float, ...] = ()
    terminal_reward: float | None = None
    breakdown: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.loss_mask), len(self.sampler_logprobs)}
        if len(lengths) != 1:
            raise DataError(
                f"{self.place}: token_ids, loss_mask and sampler_logprobs have lengths "
                f"{len(self.token_ids)}, {len(self.loss_mask)}, {len(self.sampler_logprobs)}; they must agree"
            )
        for reward in (*self.turn_rewards, self.terminal_reward):
            if reward is not None and not math.isfinite(reward):
                raise DataError(f"{self.place}: reward {reward} is not finite; a failed reward is None")

    @property
    def place(self) -> str:
        """Where to look for this trajectory, for messages."""
        return f"scenario {self.scenario_id} sample {self.sample}"

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation without its tokens."""
        return tuple(turn.message for turn in self.turns)

    @property
    def total_reward(self) -> float | None:
        """Terminal reward plus all turn rewards; None when the trajectory has no reward."""
        return None if self.terminal_reward is None else self.terminal_reward + math.fsum(self.turn_rewards)

    @property
    def action_count(self) -> int:
        """How many tokens the policy itself said."""
        return int(self.loss_mask.sum())

    @property
    def reworded(self) -> int:
        """How many turns the agent's own code changed or wrote after sampling: none of their tokens is in the mask."""
        return sum(
            turn.message.role == "assistant"
            and turn.stop > turn.start
            and not self.loss_mask[turn.start : turn.stop].any()
            for turn in self.turns
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """The sibling trajectories of one scenario: what an advantage is relative to."""

    scenario_id: str
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        strangers = {t.scenario_id for t in self.trajectories} - {self.scenario_id}
        if strangers:
            raise DataError(f"group {self.scenario_id} holds trajectories of {', '.join(sorted(strangers))}")

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Total reward of each sibling, in sample order."""
        return tuple(trajectory.total_reward for trajectory in self.trajectories)


def group(trajectories: Sequence[Trajectory]) -> tuple[TrajectoryGroup, ...]:
    """Collect siblings: groups in order of first appearance, siblings by sample index."""
    siblings: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        siblings.setdefault(trajectory.scenario_id, []).append(trajectory)
    return tuple(
        TrajectoryGroup(scenario_id=scenario_id, trajectories=tuple(sorted(members, key=lambda t: t.sample)))
        for scenario_id, members in siblings.items()
    )
