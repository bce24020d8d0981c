"""Similar texts of two sets, in arrays that can hold all texts of a serving log in a year.

A text is kept as its shingles and the keys of its bands, 32 bits each, about 600 bytes. Two texts are compared only if
they share a key. If they share one by chance, that only costs time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from grpo.scenarios.near_duplicates import BANDS, band_keys, shingles

COLUMNS = [("text", pa.uint64()), ("bands", pa.binary(4 * BANDS)), ("shingles", pa.list_(pa.uint32()))]
"""Columns of a table of texts: the digest of the shingles, the keys of the bands, and the shingles."""
_MOST_PAIRS = 2**24
"""Pairs that are checked for a shared key at once, one byte each."""
_MOST_BITS = 2**27
"""Bits of texts or of pairs that are compared at once, 16 MiB."""
_SIZES = (256, 4096)
"""Numbers of bits. The small set excludes most pairs of short texts, and the large set most pairs of long texts."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSet:
    """Texts by their shingles."""

    digests: NDArray[np.uint64]  # [texts]
    bands: NDArray[np.uint32]  # [texts, bands]
    starts: NDArray[np.int64]  # [texts + 1] places of their shingles
    shingles: NDArray[np.uint32]  # [shingles] sorted within a text

    def __len__(self) -> int:
        return len(self.digests)

    @classmethod
    def read(cls, rows: pa.Table) -> TextSet:
        """Texts of a table with `COLUMNS`."""
        rows = rows.combine_chunks()
        lists = rows.column("shingles").combine_chunks()
        lists = lists if isinstance(lists, pa.ListArray) else pa.concat_arrays(lists.chunks)
        lengths = lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        keys = rows.column("bands").to_pylist()
        return cls(
            digests=rows.column("text").to_numpy(),
            bands=np.frombuffer(b"".join(keys), "<u4").reshape(-1, BANDS),
            starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            shingles=lists.flatten().to_numpy(),
        )

    @classmethod
    def of(cls, texts: Iterable[str]) -> TextSet:
        """Set of these texts, with their shingles and keys computed."""
        cells = zip(*map(text_cells, texts), strict=True)
        arrays = [pa.array(column, kind) for column, (_, kind) in zip(cells, COLUMNS, strict=False)]
        empty = [pa.array([], kind) for _, kind in COLUMNS]
        return cls.read(pa.table(arrays or empty, names=[name for name, _ in COLUMNS]))

    def take(self, places: NDArray[Any]) -> TextSet:
        """The texts at these places."""
        lengths = np.diff(self.starts)[places]
        return TextSet(
            digests=self.digests[places],
            bands=self.bands[places],
            starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            shingles=self.shingles[_ranges(self.starts[places], lengths)],
        )


def text_cells(text: str) -> tuple[int, bytes, NDArray[np.uint32]]:
    """Cells of a text in `COLUMNS`."""
    hashes = shingles(text)
    ordered = np.sort(np.fromiter(hashes, np.uint32, len(hashes)))
    keys = np.asarray([crc32(key) for key in band_keys(hashes)], "<u4").tobytes()
    return int.from_bytes(hashlib.sha256(ordered.astype("<u4").tobytes()).digest()[:8]), keys, ordered


def concatenate(sets: Sequence[TextSet]) -> TextSet:
    """All texts of several sets, in order."""
    lengths = [np.diff(part.starts) for part in sets]
    return TextSet(
        digests=np.concatenate([part.digests for part in sets]),
        bands=np.concatenate([part.bands for part in sets]),
        starts=np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64),
        shingles=np.concatenate([part.shingles for part in sets]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarPairs:
    """Pairs of similar texts, by their places in two sets."""

    left: NDArray[np.int64]  # [pairs]
    right: NDArray[np.int64]  # [pairs]
    similarity: NDArray[np.float64]  # [pairs] Jaccard

    @classmethod
    def find(cls, left: TextSet, right: TextSet, threshold: float) -> SimilarPairs:
        """All pairs of a left and a right text with at least this similarity, ordered by right and then left text."""
        blocks = [_NO_PAIRS, *_blocks(left, right, threshold)]
        lefts, rights = (np.concatenate([block[side] for block in blocks]) for side in (0, 1))
        order = np.lexsort((lefts, rights))
        similarity = np.concatenate([block[2] for block in blocks])
        return cls(left=lefts[order], right=rights[order], similarity=similarity[order])


_Pairs = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
_NO_PAIRS: _Pairs = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64))


def _blocks(left: TextSet, right: TextSet, threshold: float) -> Iterator[_Pairs]:
    if not len(left) or not len(right):
        return
    bits = [(_bits(left, size), _bits(right, size)) for size in _SIZES]
    size = max(1, _MOST_PAIRS // len(right))
    for start in range(0, len(left), size):
        stop = min(len(left), start + size)
        right_places, left_places = np.nonzero(_alike(left.bands[start:stop], right.bands).T)
        pairs = left_places + start, right_places
        for bits_left, bits_right in bits:
            possible = _possible(left, right, bits_left, bits_right, *pairs, threshold)
            pairs = pairs[0][possible], pairs[1][possible]
        yield _compared(left, right, *pairs, threshold)


def _alike(left: NDArray[np.uint32], right: NDArray[np.uint32]) -> NDArray[np.bool_]:  # [left, right]
    """True for pairs that have the key of a band in common."""
    alike = np.zeros((len(left), len(right)), np.bool_)
    for band in range(BANDS):
        order = np.argsort(left[:, band])
        keys = left[order, band]
        first, last = (np.searchsorted(keys, right[:, band], side) for side in ("left", "right"))
        counts = last - first
        places = np.repeat(np.arange(len(right)), counts)
        alike[order[_ranges(first, counts)], places] = True
    return alike


def _possible(
    left: TextSet,
    right: TextSet,
    bits_left: NDArray[np.uint64],
    bits_right: NDArray[np.uint64],
    lefts: NDArray[np.int64],
    rights: NDArray[np.int64],
    threshold: float,
) -> NDArray[np.bool_]:  # [pairs]
    """True for pairs that the bits of their shingles do not exclude.

    Each bit in which two texts differ comes from a shingle that one of them lacks. If the texts have sizes a and b and
    differ in d bits, their similarity is at most (a + b - d) / (a + b + d).
    """
    possible = np.empty(len(lefts), np.bool_)
    sizes_left, sizes_right = np.diff(left.starts), np.diff(right.starts)
    pairs = max(1, _MOST_BITS // (64 * bits_left.shape[1]))
    for start in range(0, len(lefts), pairs):
        these, those = lefts[start : start + pairs], rights[start : start + pairs]
        differing = np.bitwise_count(bits_left[these] ^ bits_right[those]).sum(axis=1, dtype=np.int64)
        sizes = sizes_left[these] + sizes_right[those]
        possible[start : start + len(these)] = (sizes - differing) >= (threshold - _ROUNDING) * (sizes + differing)
    return possible


def _bits(texts: TextSet, size: int) -> NDArray[np.uint64]:  # [texts, size / 64]
    """For each text the last bits of all its shingles, as a set of `size` numbers."""
    packed = np.empty((len(texts), size // 64), np.uint64)
    rows = max(1, _MOST_BITS // (8 * size))  # they are bytes before they are packed
    for start in range(0, len(texts), rows):
        bounds = texts.starts[start : start + rows + 1]
        bits = np.zeros((len(bounds) - 1, size), np.bool_)
        owners = np.repeat(np.arange(len(bits)), np.diff(bounds))
        bits[owners, texts.shingles[bounds[0] : bounds[-1]] & (size - 1)] = True
        packed[start : start + len(bits)] = np.packbits(bits, axis=1).view(np.uint64)
    return packed


def _compared(
    left: TextSet, right: TextSet, lefts: NDArray[np.int64], rights: NDArray[np.int64], threshold: float
) -> _Pairs:
    """The similar ones among these pairs. The pairs must be ordered by the right text."""
    sizes_left, sizes_right = np.diff(left.starts)[lefts], np.diff(right.starts)[rights]
    shared = np.zeros(len(lefts), np.int64)
    bounds = [*np.flatnonzero(np.diff(rights, prepend=-1)), len(rights)]
    for start, stop in pairwise(bounds):
        text = right.shingles[right.starts[rights[start]] : right.starts[rights[start] + 1]]
        lengths = sizes_left[start:stop]
        others = left.shingles[_ranges(left.starts[lefts[start:stop]], lengths)]
        place = np.minimum(np.searchsorted(text, others), len(text) - 1)
        offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        shared[start:stop] = np.add.reduceat((text[place] == others).astype(np.int64), offsets)
    similarity = shared / (sizes_left + sizes_right - shared)
    near = similarity >= threshold
    return lefts[near], rights[near], similarity[near]


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places of several ranges, one after the other: 5 and 9, of lengths 2 and 3, are 5 6 9 10 11."""
    total = int(lengths.sum())
    offsets = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return (np.arange(total) + offsets).astype(np.int64)
