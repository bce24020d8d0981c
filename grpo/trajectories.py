"""One played episode, token-exact, and the group of its siblings.

turns          P | A1      P | A1 E | A2        (P prompt, A action, E environment's reply)
token_ids      P   A1  E   A2
loss_mask      .   x   .   x                    the policy's own tokens
sampler_logprobs  0   l  0   l                  0 where the policy did not speak
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
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

    success: bool | None
    """Whether the task is done: the end state is right and nothing false was promised; None while a part of that is
    not judged."""
    checks: Mapping[str, bool] = field(default_factory=dict)
    """The single findings that `success` is made of."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The final state of the world."""
    unjudged: tuple[str, ...] = ()
    """Parts of success that were not judged: empty unless `success` is None."""

    def __post_init__(self) -> None:
        if (self.success is None) != bool(self.unjudged):
            raise DataError(
                f"outcome with success {self.success} and unjudged parts {list(self.unjudged)}; "
                "success is None exactly where a part is not judged"
            )

    @classmethod
    def of(
        cls, checks: Mapping[str, bool], *, unjudged: tuple[str, ...] = (), state: Mapping[str, Any] | None = None
    ) -> Outcome:
        """The outcome that findings make: success where all hold and nothing is left to judge."""
        success = None if unjudged else all(checks.values())
        return cls(success=success, checks=checks, state=state or {}, unjudged=unjudged)


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
    reward_metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the reward says of its score: weights, parts, a rubric and its hash, which judge it was, a veto."""

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

    def __eq__(self, other: object) -> bool:
        """Whether all fields are the same; a log-probability that is not known equals another that is not."""
        if not isinstance(other, Trajectory):
            return NotImplemented
        return all(
            np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")
            if isinstance(mine, np.ndarray)
            else mine == theirs
            for mine, theirs in ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        )

    @property
    def success(self) -> bool | None:
        """Verified success; None where the environment verifies nothing, or a part of success was not judged."""
        return None if self.outcome is None else self.outcome.success

    @property
    def place(self) -> str:
        """Where to look for this trajectory, for messages."""
        return f"scenario {self.scenario_id} sample {self.sample}"

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation without its tokens."""
        return tuple(turn.message for turn in self.turns)

    def to_messages(self) -> list[dict[str, Any]]:
        """The conversation as chat templates take it: `{"role", "content"}`, and `tool_calls` where there are some."""
        return [message.to_template() for message in self.messages]

    @property
    def total_reward(self) -> float | None:
        """Terminal reward plus all turn rewards; None when the trajectory has no reward."""
        return None if self.terminal_reward is None else self.terminal_reward + math.fsum(self.turn_rewards)

    @property
    def completion_tokens(self) -> int:
        """How many tokens the policy itself said."""
        return int(self.loss_mask.sum())

    @property
    def overridden_turns(self) -> int:
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

    def compute_group_statistics(self) -> dict[str, float]:
        """Mean, std, min, max and n of the total rewards of the siblings that have one.

        The std has Bessel's correction, as advantages have it, and is 0 where n is 1.

            .7 .9 .6 .8  →  mean .75, std .1291, min .6, max .9, n 4

        Raises `DataError` where no sibling has a reward.
        """
        rewards = [reward for reward in self.rewards if reward is not None]
        if not rewards:
            raise DataError(f"group {self.scenario_id}: none of {len(self.trajectories)} trajectories has a reward")
        return {
            "mean": statistics.fmean(rewards),
            "std": statistics.stdev(rewards) if len(rewards) > 1 else 0.0,
            "min": min(rewards),
            "max": max(rewards),
            "n": len(rewards),
        }


class TrajectoryBuffer:
    """The last `size` trajectories: adding one more lets go of the oldest."""

    def __init__(self, size: int = 100) -> None:
        if size < 1:
            raise DataError(f"a buffer of size {size} holds nothing; give at least 1")
        self._kept: deque[Trajectory] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self._kept)

    def add(self, *trajectories: Trajectory) -> None:
        """Add trajectories, the oldest first."""
        self._kept.extend(trajectories)

    def sample(self, count: int, *, seed: int) -> list[Trajectory]:
        """Different trajectories drawn by a seed, all of them where there are fewer than `count`."""
        return random.Random(seed).sample(list(self._kept), min(count, len(self._kept)))


def group(trajectories: Sequence[Trajectory]) -> tuple[TrajectoryGroup, ...]:
    """Collect siblings: groups in order of first appearance, siblings by sample index."""
    siblings: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        siblings.setdefault(trajectory.scenario_id, []).append(trajectory)
    return tuple(
        TrajectoryGroup(scenario_id=scenario_id, trajectories=tuple(sorted(members, key=lambda t: t.sample)))
        for scenario_id, members in siblings.items()
    )
