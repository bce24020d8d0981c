"""Near-duplicates text by text: the definition that the comparison in arrays is compared with."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from grpo.scenarios.near_duplicates import band_keys, shingles


class NearDuplicate(NamedTuple):
    """Most similar text of the index."""

    name: str
    similarity: float


def similarity(left: frozenset[int], right: frozenset[int]) -> float:
    """Jaccard similarity of two sets of shingles."""
    return len(left & right) / len(left | right)


class NearDuplicates:
    """Index of named texts for queries by a minimum similarity."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._texts: list[tuple[str, frozenset[int]]] = []
        self._buckets: defaultdict[tuple[int, bytes], list[int]] = defaultdict(list)

    def add(self, name: str, text: str) -> None:
        """Add a text to the index."""
        hashes = shingles(text)
        for key in self._keys(hashes):
            self._buckets[key].append(len(self._texts))
        self._texts.append((name, hashes))

    def find(self, text: str) -> NearDuplicate | None:
        """Return the most similar text above the threshold, or None."""
        query = shingles(text)
        candidates = {index for key in self._keys(query) for index in self._buckets.get(key, ())}
        near = [NearDuplicate(self._texts[k][0], similarity(query, self._texts[k][1])) for k in sorted(candidates)]
        best = max(near, key=lambda match: match.similarity, default=None)
        return best if best is not None and best.similarity >= self._threshold else None

    def _keys(self, hashes: frozenset[int]) -> list[tuple[int, bytes]]:
        """Bucket keys of a text, one per band."""
        return list(enumerate(band_keys(hashes)))
