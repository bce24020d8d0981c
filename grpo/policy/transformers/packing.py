"""Sequence packing with shared prefixes: token sequences as one flat row that has each common prefix once.

    [ system prompt ][ prompt of group 1  ][ … of group 2 ][ sample 1 of group 1  ][ sample 2 …  ]
            ▲────────────────┴─────────────────────┘
            └ attended by all ▲────────────────────────────────┴────────────────┘

A segment attends to its ancestors and its own past; positions continue those of the parent. The policy's gradient is
that of the separate sequences: a shared prefix has no loss token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from grpo.policy.transformers.attention import NEVER, TreeBatch, TreeBlock
from grpo.policy.transformers.token_batch import MaskedSequence, TokenBatch

_MIN_FILL = 0.75
"""Segments attend in one block as long as the shortest has this share of the longest's tokens."""
_MAX_EXPANSION = 4
"""Most tokens of a row's sequences at full length, for each token of the row."""


S = TypeVar("S", bound=MaskedSequence)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Tokens [start, start + length) of the row, and the indices of all their ancestors."""

    start: int
    length: int
    past: NDArray[np.int64]

    @property
    def chain(self) -> NDArray[np.int64]:
        """Indices of the whole sequence up to the end of this segment."""
        return np.concatenate([self.past, np.arange(self.start, self.start + self.length)])


def pack(samples: Sequence[MaskedSequence], *, device: torch.device) -> TokenBatch:
    """Pack samples so that their common prefix, and each prompt that a group shares, is in the row once."""
    prompts = {_prompt(sample): sample.token_ids[: _prompt_length(sample)] for sample in samples}
    common = common_prefix_length(list(prompts.values()))
    row: list[NDArray[np.int32]] = []
    levels: list[list[_Segment]] = [[], [], []]
    end = 0

    def append(level: int, ids: NDArray[np.int32], past: NDArray[np.int64]) -> _Segment:
        nonlocal end
        segment = _Segment(end, len(ids), past)
        if segment.length:
            row.append(ids)
            levels[level].append(segment)
            end += segment.length
        return segment

    root = append(0, samples[0].token_ids[:common], np.zeros(0, dtype=np.int64))
    parents = {key: append(1, ids[common:], root.chain) for key, ids in prompts.items()}
    chains: list[NDArray[np.int64]] = []
    for sample in samples:
        parent = parents[_prompt(sample)]
        chains.append(append(2, sample.token_ids[_prompt_length(sample) :], parent.chain).chain)
    segments = [segment for level in levels for segment in level]
    positions = np.concatenate([len(s.past) + np.arange(s.length) for s in sorted(segments, key=lambda s: s.start)])
    completions = [np.flatnonzero(sample.loss_mask) for sample in samples]
    predictors = np.concatenate([chain[index - 1] for chain, index in zip(chains, completions, strict=True)])
    ends = np.array([chain[-1] for chain in chains])
    targets = np.concatenate([sample.token_ids[index] for sample, index in zip(samples, completions, strict=True)])
    blocks = [part for level in levels for part in _blocks(level)]
    place = np.empty(end, dtype=np.int64)
    rows = 0
    for part in blocks:
        width = part[0].length
        for index, segment in enumerate(part):
            place[segment.start : segment.start + segment.length] = rows + index * width + np.arange(segment.length)
        rows += len(part) * width
    return TokenBatch(
        token_ids=torch.from_numpy(np.concatenate(row).astype(np.int64))[None].to(device),
        position_ids=torch.from_numpy(positions)[None].to(device),
        tree=TreeBatch(blocks=tuple(_block(part, device) for part in blocks), place=torch.from_numpy(place).to(device)),
        predictors=torch.from_numpy(predictors).to(device),
        ends=torch.from_numpy(ends).to(device),
        targets=torch.from_numpy(targets.astype(np.int64)).to(device),
    )


def packed_microbatches(samples: Sequence[S], *, max_tokens: int) -> list[list[S]]:
    """Split a batch into rows of at most `max_tokens` tokens once packed, groups together where they fit.

    Attention keeps the keys of all ancestors of a segment: a row's sequences, at full length, have at most
    `_MAX_EXPANSION` times as many tokens.
    """
    rows: list[list[S]] = []
    known, prompts, prompt_tokens, own_tokens, full_tokens = b"", 0, 0, 0, 0
    common = np.zeros(0, dtype=np.int32)
    for sample in sorted(samples, key=_prompt):
        key, start = _prompt(sample), _prompt_length(sample)
        prompt, own = sample.token_ids[:start], len(sample.token_ids) - start
        shared = common[: common_prefix_length([common, prompt])]
        more = (prompts, prompt_tokens) if key == known else (prompts + 1, prompt_tokens + start)
        size = len(shared) + more[1] - more[0] * len(shared) + own_tokens + own
        expansion_fits = full_tokens + len(sample.token_ids) <= _MAX_EXPANSION * max_tokens
        if rows and size <= max_tokens and expansion_fits:
            rows[-1].append(sample)
            common, (prompts, prompt_tokens) = shared, more
            own_tokens, full_tokens = own_tokens + own, full_tokens + len(sample.token_ids)
        else:
            rows.append([sample])
            common, prompts, prompt_tokens = prompt, 1, start
            own_tokens, full_tokens = own, len(sample.token_ids)
        known = key
    return rows


def _prompt_length(sample: MaskedSequence) -> int:
    """Tokens before the first completion token; at least one, which predicts it."""
    return max(1, int(sample.loss_mask.argmax()))


def _prompt(sample: MaskedSequence) -> bytes:
    return sample.token_ids[: _prompt_length(sample)].tobytes()


def common_prefix_length(sequences: Sequence[NDArray[np.int32]]) -> int:
    """Length of the longest common prefix."""
    first, shortest = sequences[0], min(map(len, sequences))
    same = np.ones(shortest, dtype=np.bool_)
    for sequence in sequences[1:]:
        same &= sequence[:shortest] == first[:shortest]
    return shortest if same.all() else int(same.argmin())


def _blocks(segments: Sequence[_Segment]) -> list[list[_Segment]]:
    """Segments of similar lengths, longest first."""
    blocks: list[list[_Segment]] = []
    for _, equal in groupby(sorted(segments, key=lambda s: (-s.length, s.start)), key=lambda s: s.length):
        part = list(equal)
        if blocks and part[0].length >= _MIN_FILL * blocks[-1][0].length:
            blocks[-1].extend(part)
        else:
            blocks.append(part)
    return blocks


def _block(segments: Sequence[_Segment], device: torch.device) -> TreeBlock:
    """Index tensors of segments that attend in one block; padding repeats the first query of its segment."""
    width, past = segments[0].length, max(len(s.past) for s in segments)
    lengths = np.array([s.length for s in segments])[:, None]
    starts = np.array([s.start for s in segments])[:, None]
    offsets = np.arange(width)[None]
    own = starts + np.where(offsets < lengths, offsets, 0)
    pasts = np.array([len(s.past) for s in segments])[:, None]
    before = np.stack([np.pad(s.past, (0, past - len(s.past)), constant_values=s.start) for s in segments])
    columns = np.broadcast_to(np.arange(past)[None], before.shape)
    positions = pasts + offsets  # of padding too, which no token before it attends to
    return TreeBlock(
        queries=torch.from_numpy(own).to(device),
        keys=torch.from_numpy(np.concatenate([before, own], axis=1)).to(device),
        query_positions=torch.from_numpy(positions).to(device),
        key_positions=torch.from_numpy(
            np.concatenate([np.where(columns < pasts, columns, NEVER), positions], axis=1)
        ).to(device),
    )
