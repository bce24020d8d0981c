"""Token-exact record of one episode, and the group of samples of one scenario.

turns          P | A1      P | A1 E | A2        (P prompt, A action, E environment's reply)
token_ids      P   A1  E   A2
loss_mask      .   x   .   x                    the policy's own tokens
sampler_logprobs  0   l  0   l                  0 outside the loss mask
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from grpo.copies import Copies
from grpo.errors import DataError, OutcomeError
from grpo.messages import Message
from grpo.user_numbers import finite_number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Stop = Literal["terminated", "truncated", "turn_limit", "failed"]
"""Reason why an episode ended: by itself, by the limit of tokens of a turn or of the context, by the environment's
limit of turns or steps, or by an error."""

NOTHING_EXPECTED = "nothing expected"
"""Unjudged part of an outcome if its scenario expects nothing, because doing nothing must not count as a success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A message and the half-open token span [start, stop) that it occupies."""

    message: Message
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpan:
    """Tokens that one policy generated: from `start` up to the start of the next span."""

    policy_hash: str
    start: int
    """Index of the first of them in `token_ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Beginning that an episode shares with another one of its group, from which it branches off."""

    sample: int
    """Sample of the other episode."""
    tokens: int
    """Number of tokens up to the turn at which they part. They were generated in the other episode."""


def equal_fields(record: DataclassInstance, other: DataclassInstance) -> bool:
    """Compare all fields of two records of one class, including arrays. NaN is equal to NaN."""
    return all(
        np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")
        if isinstance(mine, np.ndarray)
        else mine == theirs
        for mine, theirs in ((getattr(record, f.name), getattr(other, f.name)) for f in fields(record))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Verification by the environment at the end of the episode."""

    success: bool | None
    """True if all checks pass, None if a part of success is not judged."""
    checks: Mapping[str, bool] = field(default_factory=dict)
    """Results of the single checks, by name."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Final state of the world."""
    unjudged: tuple[str, ...] = ()
    """Parts of success that were not judged. Empty unless `success` is None."""
    reward: float | None = None
    """Reward that the environment itself gives the episode, or None if it gives none."""

    def __post_init__(self) -> None:
        unverified = self.success is None and not self.unjudged
        if (self.success is not None and self.unjudged) or (unverified and (self.checks or not self.state)):
            raise OutcomeError(
                f"outcome with success {self.success} and unjudged parts {list(self.unjudged)}. "
                "Success is None if a part is not judged, or if there is a state and nothing is verified"
            )
        if self.reward is not None:
            reward = finite_number(self.reward)
            if reward is None:
                raise OutcomeError(f"the environment's reward is {self.reward!r:.200}. Return a finite number, or None")
            object.__setattr__(self, "reward", reward)  # of NumPy and torch, which a table does not take

    @classmethod
    def of(
        cls, checks: Mapping[str, bool], *, unjudged: tuple[str, ...] = (), state: Mapping[str, Any] | None = None
    ) -> Outcome:
        """Make an outcome from checks: success if all pass and no part is left to judge.

        Without any check success is None, because nothing could have failed.
        """
        if not checks and not unjudged:
            unjudged = (NOTHING_EXPECTED,)
        success = None if unjudged else all(checks.values())
        return cls(success=success, checks=checks, state=state or {}, unjudged=unjudged)

    def copied(self) -> Outcome:
        """A copy that shares no dict or list with this outcome."""
        return replace(self, checks=dict(self.checks), state=Copies(dict(self.state)).copy())

    @classmethod
    def of_reward(cls, reward: float | None, *, success_reward: float | None, state: Mapping[str, Any]) -> Outcome:
        """Make an outcome from the environment's own reward: success if it is at least `success_reward`.

        If either is None, success is None.
        """
        if success_reward is None or reward is None:
            return cls(success=None, state=state, reward=reward)
        success = reward >= success_reward
        return cls(success=success, checks={"success_reward": success}, state=state, reward=reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Turns of one episode with the sampled tokens, its stop reason and reward.

    `terminal_reward` is None before scoring, or if the episode or its reward failed. None does not mean 0.
    """

    scenario_id: str
    scenario_hash: str
    category: str
    difficulty: str
    sample: int
    seed: int
    policy_hash: str
    """Policy that generated the tokens, or the first of them."""
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
    turn_states: tuple[str, ...] = ()
    """Digest of the state in which each of the agent's turns was taken. Empty if the environment gives none."""
    terminal_reward: float | None = None
    breakdown: Mapping[str, float] = field(default_factory=dict)
    reward_metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the score: weights, components, rubric and its hash, judge, veto."""
    policy_spans: tuple[PolicySpan, ...] = ()
    """Policies that generated the tokens, in order, if the weights changed during the episode. Otherwise empty."""
    branch: Branch | None = None
    """None for an episode that was played from its start."""

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.loss_mask), len(self.sampler_logprobs)}
        if len(lengths) != 1:
            raise DataError(
                f"{self.place}: token_ids, loss_mask and sampler_logprobs have lengths "
                f"{len(self.token_ids)}, {len(self.loss_mask)}, {len(self.sampler_logprobs)}. They must agree"
            )
        starts = [span.start for span in self.policy_spans]
        if starts and (self.policy_spans[0].policy_hash != self.policy_hash or starts != sorted(set(starts))):
            raise DataError(
                f"{self.place}: policy_spans {starts} must begin at ascending tokens, with policy {self.policy_hash}"
            )
        for reward in (*self.turn_rewards, self.terminal_reward):
            if reward is not None and not math.isfinite(reward):
                raise DataError(f"{self.place}: reward {reward} is not finite. A failed reward is None")

    def __eq__(self, other: object) -> bool:
        """Compare all fields. NaN log-probabilities are equal."""
        if not isinstance(other, Trajectory):
            return NotImplemented
        return equal_fields(self, other)

    @property
    def success(self) -> bool | None:
        """Verified success, or None if the environment verifies nothing or a part of success was not judged."""
        return None if self.outcome is None else self.outcome.success

    @property
    def policies(self) -> tuple[str, ...]:
        """Hashes of the policies that generated its tokens, in order of their first token."""
        return tuple(dict.fromkeys((self.policy_hash, *(span.policy_hash for span in self.policy_spans))))

    @property
    def is_cut_off(self) -> bool:
        """True if a limit of tokens, turns or steps ended the episode, so that its last state has a value."""
        return self.stop in ("truncated", "turn_limit")

    @property
    def place(self) -> str:
        """Scenario and sample, for messages."""
        return f"scenario {self.scenario_id} sample {self.sample}"

    @property
    def messages(self) -> tuple[Message, ...]:
        """Messages of the conversation."""
        return tuple(turn.message for turn in self.turns)

    def to_messages(self) -> list[dict[str, Any]]:
        """Messages in the format of chat templates: `{"role", "content"}`, and `tool_calls` if there are some."""
        return [message.to_template() for message in self.messages]

    def _repr_html_(self) -> str:
        """Conversation with its reward, outcome and stop reason, for notebooks."""
        verdict = {True: "success", False: "failure", None: "not verified"}[self.success]
        reward = "none" if self.total_reward is None else f"{self.total_reward:.4g}"
        heading = f"{self.place}: reward {reward}, {verdict}, stop {self.stop}"
        rows = "".join(
            f'<tr><td>{message.role}</td><td style="text-align: left; white-space: pre-wrap">{escape(text)}</td></tr>'
            for message in self.messages
            for text in ("\n".join([message.content, *(f"call {call}" for call in message.tool_calls)]).strip(),)
        )
        return f"<p>{escape(heading)}</p><table>{rows}</table>"

    @property
    def total_reward(self) -> float | None:
        """Terminal reward plus all turn rewards, or None if the trajectory has no reward."""
        return None if self.terminal_reward is None else self.terminal_reward + math.fsum(self.turn_rewards)

    @property
    def completion_tokens(self) -> int:
        """Number of tokens under the loss mask."""
        return int(self.loss_mask.sum())

    @property
    def own_start(self) -> int:
        """Index of the first token that it does not share with the episode that it branches off from."""
        return 0 if self.branch is None else self.branch.tokens

    @property
    def own_turns(self) -> tuple[Turn, ...]:
        """Turns that it does not share with the episode that it branches off from. Counts of replies use them."""
        return tuple(turn for turn in self.turns if turn.start >= self.own_start)

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """Token ids from the agent's first turn on, including tokens of the environment."""
        start = next((turn.start for turn in self.turns if turn.message.role == "assistant"), len(self.token_ids))
        return tuple(self.token_ids[start:].tolist())

    @property
    def overridden_turns(self) -> int:
        """Number of turns that the agent's code changed after sampling, so that the loss mask excludes their tokens."""
        return sum(
            turn.message.role == "assistant"
            and turn.stop > turn.start
            and not self.loss_mask[turn.start : turn.stop].any()
            for turn in self.turns
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """Trajectories of one scenario. Advantages are relative to this group."""

    scenario_id: str
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        others = {t.scenario_id for t in self.trajectories} - {self.scenario_id}
        if others:
            raise DataError(f"group {self.scenario_id} has trajectories of {', '.join(sorted(others))}")

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Total reward of each trajectory, in sample order."""
        return tuple(trajectory.total_reward for trajectory in self.trajectories)

    def _repr_html_(self) -> str:
        """Conversations of the group, for notebooks."""
        return "".join(trajectory._repr_html_() for trajectory in self.trajectories)

    def compute_group_statistics(self) -> dict[str, float]:
        """Mean, std, min, max and n of the total rewards that are not None.

        The std has Bessel's correction, as in the advantages, and is 0 if n is 1.

            .7 .9 .6 .8  →  mean .75, std .1291, min .6, max .9, n 4

        Raises `DataError` if no trajectory has a reward.
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
    """Buffer of the last `size` trajectories."""

    def __init__(self, size: int = 100) -> None:
        if size < 1:
            raise DataError(f"a buffer of size {size} is empty. Give at least 1")
        self._kept: deque[Trajectory] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self._kept)

    def add(self, *trajectories: Trajectory) -> None:
        """Add trajectories, the oldest first."""
        self._kept.extend(trajectories)

    def sample(self, count: int, *, seed: int) -> list[Trajectory]:
        """Draw `count` different trajectories by a seed, or all if there are fewer."""
        return random.Random(seed).sample(list(self._kept), min(count, len(self._kept)))


def group(trajectories: Sequence[Trajectory]) -> tuple[TrajectoryGroup, ...]:
    """Group trajectories by scenario: groups in order of first appearance, members by sample index."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.scenario_id, []).append(trajectory)
    return tuple(
        TrajectoryGroup(scenario_id=scenario_id, trajectories=tuple(sorted(members, key=lambda t: t.sample)))
        for scenario_id, members in groups.items()
    )
