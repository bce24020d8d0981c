"""Whether two samples of conversations are about the same: a kernel two-sample test on their words.

Each text is a vector of its words and pairs of words (TF-IDF, length 1); the statistic is the squared maximum mean
discrepancy with the linear kernel, ‖mean(a) − mean(b)‖² (Gretton et al. 2012, JMLR 13, eq. 5). How large it gets where
nothing differs is found by giving the labels out anew: the p-value is the share of shuffles that reach what was
observed. Under no drift that holds for any sample size and any texts: a test at level 0.01 raises one false alarm in a
hundred.

    known ("red", "red"), new ("blue", "blue"): means (1,0) and (0,1), statistic 2, which 2 of the 6 ways to give out
    the labels reach
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_PERMUTATIONS = 999


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSampleTest:
    """What the test found."""

    mmd: float
    """Squared distance of the means: 0 the same words, 2 none in common."""
    p: float
    """How often chance alone gives as much."""
    words: tuple[str, ...]
    """Words and pairs that the second sample says more often than the first, the most telling first."""


def compare_topics(
    known: Sequence[str], new: Sequence[str], *, sample: int, seed: int, permutations: int = _PERMUTATIONS
) -> TwoSampleTest:
    """Test whether `new` is drawn from what `known` is drawn from; at most `sample` of each are compared.

    Raises `ValueError` where no text has a word.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # a second that other reasons need not wait for

    rng = np.random.default_rng(seed)
    sides = [_draw(texts, sample, rng) for texts in (known, new)]
    first, count = len(sides[0]), len(sides[0]) + len(sides[1])
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    vectors = vectorizer.fit_transform([*sides[0], *sides[1]])
    gram = (vectors @ vectors.T).toarray()  # [texts, texts]
    signs = np.full((permutations + 1, count), -1.0 / (count - first))
    signs[0, :first] = 1.0 / first
    for row in signs[1:]:
        row[rng.permutation(count)[:first]] = 1.0 / first
    statistics = np.einsum("pi,pi->p", signs @ gram, signs)
    reached = int(np.sum(statistics[1:] >= statistics[0] * (1 - 1e-9)))
    difference = np.asarray(vectors[first:].mean(axis=0) - vectors[:first].mean(axis=0)).ravel()
    names = vectorizer.get_feature_names_out()
    return TwoSampleTest(
        mmd=float(statistics[0]),
        p=(1 + reached) / (1 + permutations),
        words=tuple(str(names[k]) for k in np.argsort(-difference)[:5] if difference[k] > 0),
    )


def _draw(texts: Sequence[str], sample: int, rng: np.random.Generator) -> list[str]:
    if len(texts) <= sample:
        return list(texts)
    return [texts[k] for k in sorted(rng.choice(len(texts), size=sample, replace=False))]
