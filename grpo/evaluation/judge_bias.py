"""Position bias and length bias of an LLM judge."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grpo.errors import DataError
from grpo.evaluation.schema import Interval
from grpo.evaluation.statistics import interval
from grpo.messages import Message
from grpo.rewards.judge.ruler import RulerReward
from grpo.rewards.reward import Episode, RewardResult

PADDING = (
    " I hope that this is what you wanted to know. Please do not hesitate to tell me if there is anything else. It is"
    " always a pleasure to be of help, and I wish you a very pleasant day."
)
"""Text without information for the user."""
_ENDS = (-1.0, 1.0)
"""Range of a difference of two scores, each from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionBias:
    """Effect of a conversation's position in the prompt on its score."""

    means: tuple[float, ...]
    """Mean score at each position over all rotations."""
    effects: tuple[Interval, ...]
    """Score at a position minus the same conversation's mean over positions. Intervals are over conversations."""
    unscored_groups: int
    """Groups that are left out of the means, because the judge did not score one of their rotations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBias:
    """Effect of appended filler text on the score."""

    effect: Interval
    """Score of the padded copy minus the original's, mean over both orders. The interval is over conversations."""
    unscored: int
    """Conversations that are left out of the mean, because the judge did not score them."""


async def position_bias(
    judge: RulerReward,
    groups: Sequence[Sequence[Episode]],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> PositionBias:
    """Score each group in all rotations. If the judge is unbiased, the intervals of its effects contain 0.

    Rotations of a, b, c: abc, bca, cab. Raises `DataError` if the groups have different sizes or less than 2
    conversations, or if no group was scored.
    """
    sizes = {len(group) for group in groups}
    if len(sizes) != 1 or min(sizes) < 2:
        raise DataError(
            f"position bias needs groups of one size, at least 2, instead of groups of sizes {sorted(sizes)}"
        )
    (count,) = sizes
    tables = [table for table in [await _rotated(judge, group) for group in groups] if table is not None]
    if not tables:
        raise DataError(f"the judge scored none of {len(groups)} groups in all rotations")
    scores = np.concatenate(tables)  # [conversations, places]
    effects = scores - scores.mean(axis=1, keepdims=True)
    return PositionBias(
        means=tuple(float(mean) for mean in scores.mean(axis=0)),
        effects=tuple(
            interval(effects[:, place], ends=_ENDS, confidence=confidence, resamples=resamples, seed=seed)
            for place in range(count)
        ),
        unscored_groups=len(groups) - len(tables),
    )


async def length_bias(
    judge: RulerReward,
    episodes: Sequence[Episode],
    *,
    padding: str = PADDING,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> LengthBias:
    """Compare each conversation with a copy that has `padding` after each reply, in both orders.

    Raises `DataError` if no conversation was scored.
    """
    pairs = [(episode, _padded(episode, padding)) for episode in episodes]
    tables = [await _rotated(judge, pair) for pair in pairs]
    gains = np.array([np.mean(table[1] - table[0]) for table in tables if table is not None])
    if not len(gains):
        raise DataError(f"the judge scored none of {len(pairs)} conversations and their padded copies")
    effect = interval(gains, ends=_ENDS, confidence=confidence, resamples=resamples, seed=seed)
    return LengthBias(effect=effect, unscored=len(pairs) - len(gains))


async def _rotated(judge: RulerReward, group: Sequence[Episode]) -> NDArray[np.float64] | None:
    """Scores [conversations, positions] over all rotations of a group, or None if a score is missing."""
    count = len(group)
    orders = [[(place + shift) % count for place in range(count)] for shift in range(count)]
    scores = np.empty((count, count))
    for order, results in zip(orders, await asyncio.gather(*(judge.compare(group, o) for o in orders)), strict=True):
        for place, index in enumerate(order):
            result = results[index]
            if not isinstance(result, RewardResult):
                return None
            scores[index, place] = result.score
    return scores


def _padded(episode: Episode, padding: str) -> Episode:
    def longer(turn: Message) -> Message:
        is_reply = turn.role == "assistant" and not turn.tool_calls
        return replace(turn, content=turn.content + padding) if is_reply else turn

    return replace(episode, turns=tuple(longer(turn) for turn in episode.turns))
