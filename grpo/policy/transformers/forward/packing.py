"""Sequence packing with shared prefixes: one flat row of token sequences that has each common prefix once.

    [ system prompt ][ prompt of group 1 ][ completion, common beginning ][ rest of sample 1 ][ rest of sample 2 ]
            ▲                 ▲    └──────────────────▲──┴────────────────────────┴──────────────────┘
            └─────────────────┴──── all segments that continue them attend to them

The segments are the edges of the sequences' radix tree. A segment attends to its ancestors and its own past, and its
positions continue the parent's. Equal sequences share one leaf. Values and gradients are the same as for the separate
sequences, because a shared segment sums the gradients of all sequences that continue it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from grpo.policy.transformers.forward.attention import NEVER, TreeBatch, TreeBlock
from grpo.policy.transformers.forward.token_batch import MaskedSequence, TokenBatch

_MIN_FILL = 0.75
"""Segments attend in one block only if the shortest has this share of the longest's queries and keys."""
_MAX_EXPANSION = 4
"""Maximum number of keys of a row's segments, ancestors' keys included, per token that the row may have."""


S = TypeVar("S", bound=MaskedSequence)


@dataclass(slots=True)
class _Edge:
    """Tokens [start, end) of a sequence, shared by all sequences that continue its ancestors in the same way."""

    ids: NDArray[np.int32]
    start: int
    end: int
    parent: _Edge | None


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
    """Pack samples so that each shared prefix is in the row once."""
    keys = [_key(sample) for sample in samples]
    leaves = _radix_tree({key: sample.token_ids for key, sample in zip(keys, samples, strict=True)})
    segments: dict[int, _Segment] = {}
    row: list[NDArray[np.int32]] = []
    end = 0
    for leaf in leaves.values():
        past = np.zeros(0, dtype=np.int64)
        for edge in _path(leaf):
            if id(edge) not in segments:
                segments[id(edge)] = _Segment(end, edge.end - edge.start, past)
                row.append(edge.ids[edge.start : edge.end])
                end += edge.end - edge.start
            past = segments[id(edge)].chain
    chain_of = {key: segments[id(leaf)].chain for key, leaf in leaves.items()}
    chains = [chain_of[key] for key in keys]
    positions = np.concatenate([len(s.past) + np.arange(s.length) for s in segments.values()])
    completions = [np.flatnonzero(sample.loss_mask) for sample in samples]
    predictors = np.concatenate([chain[index - 1] for chain, index in zip(chains, completions, strict=True)])
    ends = np.array([chain[-1] for chain in chains])
    targets = np.concatenate([sample.token_ids[index] for sample, index in zip(samples, completions, strict=True)])
    blocks = _blocks(list(segments.values()))
    place = np.empty(end, dtype=np.int64)
    rows = 0
    for part in blocks:
        width = max(segment.length for segment in part)
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
    """Split a batch into rows of up to `max_tokens` packed tokens, with similar sequences together.

    Attention keeps the keys of all ancestors of each segment. So a row is also limited to `_MAX_EXPANSION` ·
    `max_tokens` keys.
    """
    rows: list[list[S]] = []
    ends: list[int] = []  # of the edges from the root to the last sequence
    previous = np.zeros(0, dtype=np.int32)
    tokens, keys = 0, 0
    for sample in sorted(samples, key=_key):  # sorted, so the longest shared prefix is with a neighbour
        ids = sample.token_ids
        shared = common_prefix_length([previous, ids]) if rows else 0
        new = len(ids) - shared
        is_cut = 0 < shared < len(ids) and shared not in ends
        new_keys = (len(ids) if new else 0) + (shared if is_cut else 0)
        fits = tokens + new <= max_tokens and keys + new_keys <= _MAX_EXPANSION * max_tokens
        if rows and (fits or not new):
            rows[-1].append(sample)
            tokens, keys = tokens + new, keys + new_keys
            ends = [*(end for end in ends if end < shared), *{shared, len(ids)}]
        else:
            rows.append([sample])
            tokens, keys, ends = len(ids), len(ids), [len(ids)]
        previous = ids
    return rows


def common_prefix_length(sequences: Sequence[NDArray[np.int32]]) -> int:
    """Length of the longest common prefix."""
    first, shortest = sequences[0], min(map(len, sequences))
    same = np.ones(shortest, dtype=np.bool_)
    for sequence in sequences[1:]:
        same &= sequence[:shortest] == first[:shortest]
    return shortest if same.all() else int(same.argmin())


def _key(sample: MaskedSequence) -> bytes:
    """The tokens in big-endian bytes, which sort like the sequences."""
    return sample.token_ids.astype(">i4").tobytes()


def _radix_tree(sequences: dict[bytes, NDArray[np.int32]]) -> dict[bytes, _Edge]:
    """The last edge of each sequence, by key, in sorted order.

    The sequences are sorted, so each one leaves the path of the one before it at the end of their common prefix, and an
    edge is cut there:

    9 8 7 1 2    [9 8 7 1 2]
    9 8 7 3      [9 8 7] → [1 2], [3]
    9 8 9        [9 8] → [7] → [1 2], [3]
                       → [9]
    """
    leaves: dict[bytes, _Edge] = {}
    path: list[_Edge] = []
    previous = np.zeros(0, dtype=np.int32)
    for key in sorted(sequences):
        ids = sequences[key]
        shared = common_prefix_length([previous, ids])
        while path and path[-1].start >= shared:
            path.pop()
        if path and path[-1].end > shared:
            lower = path.pop()
            upper = _Edge(lower.ids, lower.start, shared, lower.parent)
            lower.start, lower.parent = shared, upper
            path.append(upper)
        path.append(_Edge(ids, shared, len(ids), path[-1] if path else None))
        leaves[key], previous = path[-1], ids
    return leaves


def _path(leaf: _Edge) -> list[_Edge]:
    """The edges from the root to a leaf."""
    path = [leaf]
    while path[-1].parent is not None:
        path.append(path[-1].parent)
    return path[::-1]


def _blocks(segments: Sequence[_Segment]) -> list[list[_Segment]]:
    """Group segments with similar numbers of queries and keys."""

    def by_size(segments: Sequence[_Segment], size: Callable[[_Segment], int]) -> list[list[_Segment]]:
        parts: list[list[_Segment]] = []
        for segment in sorted(segments, key=size, reverse=True):
            if parts and size(segment) >= _MIN_FILL * size(parts[-1][0]):
                parts[-1].append(segment)
            else:
                parts.append([segment])
        return parts

    by_queries = by_size(segments, lambda segment: segment.length)
    return [block for similar in by_queries for block in by_size(similar, lambda s: s.length + len(s.past))]


def _block(segments: Sequence[_Segment], device: torch.device) -> TreeBlock:
    """Index tensors of segments that attend in one block. Padding repeats the first query of its segment."""
    width, past = (max(sizes) for sizes in zip(*((s.length, len(s.past)) for s in segments), strict=True))
    lengths = np.array([s.length for s in segments])[:, None]
    starts = np.array([s.start for s in segments])[:, None]
    offsets = np.arange(width)[None]
    own = starts + np.where(offsets < lengths, offsets, 0)
    pasts = np.array([len(s.past) for s in segments])[:, None]
    before = np.stack([np.pad(s.past, (0, past - len(s.past)), constant_values=s.start) for s in segments])
    columns = np.broadcast_to(np.arange(past)[None], before.shape)
    positions = pasts + offsets  # also at padding, because no token before it attends to it
    return TreeBlock(
        queries=torch.from_numpy(own).to(device),
        keys=torch.from_numpy(np.concatenate([before, own], axis=1)).to(device),
        query_positions=torch.from_numpy(positions).to(device),
        key_positions=torch.from_numpy(
            np.concatenate([np.where(columns < pasts, columns, NEVER), positions], axis=1)
        ).to(device),
    )
