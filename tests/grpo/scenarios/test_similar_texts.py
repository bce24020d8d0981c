from __future__ import annotations

import random
import string
from itertools import combinations
from typing import Any

import pytest

from grpo.scenarios import similar_texts
from grpo.scenarios.near_duplicates import shingles
from grpo.scenarios.similar_texts import SimilarPairs, TextSet
from tests.near_duplicates import NearDuplicates, similarity


def similar(left: list[str], right: list[str], threshold: float) -> list[tuple[int, int, float]]:
    pairs = SimilarPairs.find(TextSet.of(left), TextSet.of(right), threshold)
    return list(zip(pairs.left.tolist(), pairs.right.tolist(), pairs.similarity.tolist(), strict=True))


def test_similarity_is_the_fraction_of_shared_shingles():
    """abcde bcdef cdefg and abcde bcdef cdefh: 2 shared of 4."""
    assert similar(["abcdefg"], ["abcdefh"], 0.5) == [(0, 0, 0.5)]


def test_case_punctuation_and_spaces_do_not_count():
    """Texts are normalized first."""
    assert similar(["Where's  my ORDER?!"], ["wheres my order"], 1.0) == [(0, 0, 1.0)]


def test_texts_below_the_threshold_are_not_similar():
    """abcdefghij has 6 runs; abcdefghix shares 5 of 7 = 0.714, abcdefghxy 4 of 8 = 0.5."""
    assert similar(["abcdefghxy", "abcdefghix"], ["abcdefghij"], 0.6) == [(1, 0, pytest.approx(5 / 7))]
    assert similar(["abcdefghxy", "abcdefghix"], ["abcdefghij"], 0.8) == []
    assert similar([], ["abcdefghij"], 0.6) == similar(["abcdefghij"], [], 0.6) == []


def test_texts_shorter_than_a_shingle_are_compared_whole():
    """ "hi" equals "Hi!" and no other text, and a text without letters equals another one."""
    assert similar(["hi", "?"], ["Hi!", "ok", "..."], 0.8) == [(0, 0, 1.0), (1, 2, 1.0)]


def test_pairs_just_above_the_threshold_are_not_missed():
    """Each of 500 texts of 49 letters is found by its copy with another end: 40 of 50 runs shared, 0.8."""
    rng = random.Random(0)
    texts = ["".join(rng.choices(string.ascii_lowercase, k=49)) for _ in range(500)]
    pairs = similar(texts, [text[:-5] + "12345" for text in texts], 0.8)  # 45 runs each, the first 40 are the same
    assert pairs == [(k, k, 40 / 50) for k in range(500)]


@pytest.mark.parametrize("block", [1, 700, 2**24])
def test_all_pairs_of_random_texts_are_those_of_the_comparison_text_by_text(
    block: int, monkeypatch: pytest.MonkeyPatch
):
    """Sentences of 12 words of 20, each of which a copy differs from in a few, in blocks of any size."""
    monkeypatch.setattr(similar_texts, "_MOST_PAIRS", block)
    monkeypatch.setattr(similar_texts, "_MOST_BITS", 2**16)
    rng = random.Random(1)
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 8))) for _ in range(20)]
    texts = [rng.choices(words, k=12) for _ in range(60)]
    copies = [[rng.choice(words) if rng.random() < 0.06 else word for word in text] for text in texts]
    left, right = [" ".join(text) for text in texts], [" ".join(text) for text in copies]
    expected = [
        (k, j, pytest.approx(similarity(shingles(left[k]), shingles(right[j]))))
        for j in range(60)
        for k in range(60)
        if similarity(shingles(left[k]), shingles(right[j])) >= 0.7
    ]
    assert len(expected) > 20
    assert similar(left, right, 0.7) == expected
    index = NearDuplicates(0.7)
    for k, text in enumerate(left):
        index.add(str(k), text)
    nearest = [index.find(text) for text in right]
    assert {j for _, j, _ in expected} == {j for j, match in enumerate(nearest) if match is not None}


def test_long_texts_of_the_same_words_are_told_apart_by_their_bits(monkeypatch: pytest.MonkeyPatch):
    """190 words of 220 syllables: two texts share a third of their shingles, and nearly all of 256 bits are set.

    Only the pairs that are similar, a text and its copy with one other word, are compared shingle by shingle.
    """
    compared = []

    def count(left: TextSet, right: TextSet, lefts: Any, rights: Any, threshold: float) -> Any:
        compared.append(len(lefts))
        return compare(left, right, lefts, rights, threshold)

    compare = similar_texts._compared
    monkeypatch.setattr(similar_texts, "_compared", count)
    rng = random.Random(2)
    words = [f"{a}{b}{c}" for a in "bdfglmnprst" for b in "aeiou" for c in ("ck", "nd", "rt", "st")]
    texts = [" ".join(rng.choices(words, k=190)) for _ in range(40)]
    runs = [shingles(text) for text in texts]
    assert min(similarity(a, b) for a, b in combinations(runs, 2)) > 0.25
    pairs = similar(texts, [text + " zzzzz" for text in texts], 0.8)
    assert [(left, right) for left, right, _ in pairs] == [(k, k) for k in range(40)]
    assert compared == [40]
