"""Claims of a serving log: turns that name the version that sampled them, so that the claim can be checked.

turn        P1 A1 ← P2 A2       P prompt, A reply
token_ids   P1 A1   P2 A2       the conversation up to its reply
loss_mask   .  .    .  x        its own sampled tokens
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo.log.folder import Problem
from grpo.log.join import turn_path
from grpo.log.records import Record, ServedTurn
from grpo.storage.documents import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sampled turn with all tokens that its policy had read."""

    turn: ServedTurn
    token_ids: NDArray[np.int32]  # [tokens]
    loss_mask: NDArray[np.bool_]  # [tokens]
    sampler_logprobs: NDArray[np.float32]  # [tokens]


class ServedCheck(Document):
    """Result of a check of served log-probabilities that found no difference above the tolerance."""

    turns: int
    """Turns that were computed again."""
    tokens: int
    """Sampled tokens in them."""
    difference: float
    """Largest difference of a log-probability, in nats."""
    unchecked: dict[str, int]
    """Turns that cannot be checked, by reason."""


def read_claims(records: Iterable[Record | Problem], model: str) -> tuple[list[Claim], Counter[str]]:
    """Claims of the answered turns of a model, `support-desk`, or of one version, `support-desk/3`.

    The counter has the number of its turns that cannot be checked, by reason.
    """
    turns = {record.id: record for record in records if isinstance(record, ServedTurn)}
    claims, unchecked = [], Counter[str]()
    for turn in turns.values():
        if turn.status == "answered" and (turn.model == model or turn.model.startswith(f"{model}/")):
            claim = _claim(turn, turns)
            if isinstance(claim, Claim):
                claims.append(claim)
            else:
                unchecked[claim] += 1
    return claims, unchecked


def draw(claims: list[Claim], count: int, seed: int) -> list[Claim]:
    """Draw `count` claims at random, or take all if there are fewer."""
    ordered = sorted(claims, key=lambda claim: claim.turn.id)
    return random.Random(seed).sample(ordered, min(count, len(ordered)))


def _claim(turn: ServedTurn, turns: Mapping[str, ServedTurn]) -> Claim | str:
    """The claim of a turn, or the reason why it cannot be checked."""
    path = turn_path(turn, turns)
    if isinstance(path, str):
        return path
    if not turn.loss_mask.any():
        return "no sampled tokens"
    if np.isnan(turn.sampler_logprobs[turn.loss_mask]).any():
        return "no log-probabilities: sampled greedily, or from a part of the vocabulary"
    if turn.constrained:
        return "constrained: sampled from the tokens that a grammar allows"
    earlier = [np.zeros_like(part.loss_mask) for part in path[:-1]]
    return Claim(
        turn=turn,
        token_ids=np.concatenate([part.token_ids for part in path]),
        loss_mask=np.concatenate([*earlier, turn.loss_mask]),
        sampler_logprobs=np.concatenate([part.sampler_logprobs for part in path]),
    )
