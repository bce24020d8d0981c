from __future__ import annotations

import random
import string

import pytest

from grpo.scenarios.near_duplicates import NearDuplicates, shingles, similarity


def test_similarity_is_the_fraction_of_shared_shingles():
    """abcde bcdef cdefg and abcde bcdef cdefh: 2 shared of 4."""
    assert similarity(shingles("abcdefg"), shingles("abcdefh")) == 0.5


def test_case_punctuation_and_spaces_do_not_count():
    """Texts are normalized first."""
    assert similarity(shingles("Where's  my ORDER?!"), shingles("wheres my order")) == 1


def test_the_most_similar_of_the_near_texts_is_found():
    """abcdefghij has 6 runs, abcdefghix shares 5 of 7 = 0.714, abcdefghxy 4 of 8 = 0.5."""
    index = NearDuplicates(0.6)
    index.add("far", "abcdefghxy")
    index.add("near", "abcdefghix")
    match = index.find("abcdefghij")
    assert match is not None
    assert match.name == "near"
    assert match.similarity == pytest.approx(5 / 7)
    assert NearDuplicates(0.6).find("abcdefghij") is None


def test_a_text_below_the_threshold_is_not_near():
    """0.714 is less than 0.8: candidates are compared exactly."""
    index = NearDuplicates(0.8)
    index.add("near", "abcdefghix")
    assert index.find("abcdefghij") is None


def test_texts_shorter_than_a_shingle_are_compared_whole():
    """ "hi" equals "Hi!" and no other text."""
    index = NearDuplicates(0.8)
    index.add("greeting", "hi")
    assert index.find("Hi!") == ("greeting", 1.0)
    assert index.find("ok") is None


def test_pairs_just_above_the_threshold_are_not_missed():
    """Each of 500 texts of 49 letters is found by its copy with another end: 40 of 50 runs shared, 0.8."""
    rng = random.Random(0)
    texts = ["".join(rng.choices(string.ascii_lowercase, k=49)) for _ in range(500)]
    index = NearDuplicates(0.8)
    for k, text in enumerate(texts):
        index.add(str(k), text)
    match = [index.find(text[:-5] + "12345") for text in texts]  # 45 runs each, the first 40 are the same
    assert [like.name for like in match if like is not None] == list(map(str, range(500)))
    assert {like.similarity for like in match if like is not None} == {40 / 50}
