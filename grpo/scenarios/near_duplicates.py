"""Near-duplicate texts: candidates by MinHash, then the exact Jaccard similarity of their shingles.

    "abcdefg"   shingles abcde bcdef cdefg      Jaccard with "abcdefh": 2 shared of 4 = 0.5

A shingle is a run of five characters of the normalized text. Candidates are found by banded MinHash signatures (Broder
1997; Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, ch. 3), 32 bands of 4 rows. They find 99 % of the pairs
with similarity 0.6, and all but one in ten million of the pairs with similarity 0.8. Candidates are compared exactly,
so that there are no false positives.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from grpo.scenario import normalize

_RUN = 5  # characters of a shingle
BANDS, _ROWS = 32, 4


def shingles(text: str) -> frozenset[int]:
    """Hashes of all runs of five characters of the normalized text. A shorter text is one shingle."""
    encoded = normalize(text)
    return frozenset(crc32(encoded[k : k + _RUN].encode()) for k in range(max(1, len(encoded) - _RUN + 1)))


def _coefficients() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    rng = np.random.default_rng(1997)
    shape = (BANDS * _ROWS, 1)
    factors = rng.integers(1, 2**63, shape, dtype=np.uint64) | np.uint64(1)
    return factors, rng.integers(0, 2**63, shape, dtype=np.uint64)


_FACTORS, _OFFSETS = _coefficients()


def band_keys(hashes: frozenset[int]) -> list[bytes]:
    """Keys of the bands of a text's MinHash signature. Similar texts have at least one key in common."""
    values = np.fromiter(hashes, dtype=np.uint64, count=len(hashes))
    signature: NDArray[np.uint64] = (_FACTORS * values + _OFFSETS).min(axis=1) >> np.uint64(32)
    return [signature[band * _ROWS : (band + 1) * _ROWS].tobytes() for band in range(BANDS)]
