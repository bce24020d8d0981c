"""Texts that say nearly the same: shingles, compared exactly where MinHash says that it may be worth it.

    "abcdefg"   shingles abcde bcdef cdefg      Jaccard with "abcdefh": 2 shared of 4 = 0.5

A shingle is a run of five characters of the normalized text. Candidates are found by banded MinHash signatures (Broder
1997; Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, ch. 3), 32 bands of 4 rows: of pairs with similarity 0.6
they find 99 %, of those with 0.8 all but one in ten million. What is found is compared shingle by shingle, so that no
pair is called near that is not.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from grpo.scenarios.scenario import normalize

_RUN = 5  # characters of a shingle
_BANDS, _ROWS = 32, 4


class NearDuplicate(NamedTuple):
    """The most similar of the texts that are near."""

    name: str
    similarity: float


def shingles(text: str) -> frozenset[int]:
    """Hashes of all runs of five characters of the normalized text; a shorter one is a shingle itself."""
    encoded = normalize(text)
    return frozenset(crc32(encoded[k : k + _RUN].encode()) for k in range(max(1, len(encoded) - _RUN + 1)))


def similarity(one: frozenset[int], two: frozenset[int]) -> float:
    """Jaccard: what both have, of what either has."""
    return len(one & two) / len(one | two)


class NearDuplicates:
    """An index of texts by name, which finds those at least `threshold` similar to a given one."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._texts: list[tuple[str, frozenset[int]]] = []
        self._buckets: defaultdict[tuple[int, bytes], list[int]] = defaultdict(list)
        rng = np.random.default_rng(1997)
        shape = (_BANDS * _ROWS, 1)
        self._factors = rng.integers(1, 2**63, shape, dtype=np.uint64) | np.uint64(1)
        self._offsets = rng.integers(0, 2**63, shape, dtype=np.uint64)

    def add(self, name: str, text: str) -> None:
        """Take a text into the index."""
        found = shingles(text)
        for key in self._keys(found):
            self._buckets[key].append(len(self._texts))
        self._texts.append((name, found))

    def find(self, text: str) -> NearDuplicate | None:
        """The most similar text that is near, or None."""
        wanted = shingles(text)
        candidates = {index for key in self._keys(wanted) for index in self._buckets.get(key, ())}
        near = [NearDuplicate(self._texts[k][0], similarity(wanted, self._texts[k][1])) for k in sorted(candidates)]
        best = max(near, key=lambda like: like.similarity, default=None)
        return best if best is not None and best.similarity >= self._threshold else None

    def _keys(self, found: frozenset[int]) -> list[tuple[int, bytes]]:
        """The buckets of a text, one a band."""
        hashes = np.fromiter(found, dtype=np.uint64, count=len(found))
        signature: NDArray[np.uint64] = (self._factors * hashes + self._offsets).min(axis=1) >> np.uint64(32)
        return [(band, signature[band * _ROWS : (band + 1) * _ROWS].tobytes()) for band in range(_BANDS)]
