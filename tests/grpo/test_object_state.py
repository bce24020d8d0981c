"""Saved state of objects of the user's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from grpo.errors import DataError, RewardError
from grpo.object_state import load_state, save_state

WORDS = """
class Words:
    def __init__(self):
        self.reward = 0.5
        self.seen = {"crane", "slate"}
        self.board = {(0, 1): [1, None], "name": "x"}
        self.client = object()

    def count(self):
        return len(self.seen)

class Board:
    pixels = None

class Slots:
    __slots__ = ("x",)

def nested():
    class Inner:
        pass
    return Inner()
"""


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module of the user's."""
    (tmp_path / "saved_words.py").write_text(WORDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "saved_words", raising=False)
    import saved_words  # type: ignore[import-not-found]

    return saved_words


def test_attributes_return_through_json(words):
    """Sets, tuples as keys and methods are there again; a connection is named and left out."""
    state = json.loads(json.dumps(save_state(words.Words())))
    restored = load_state(state)
    assert isinstance(restored, words.Words)
    assert (restored.reward, restored.count(), restored.board) == (0.5, 2, {(0, 1): [1, None], "name": "x"})
    assert state["unsaved"] == {"client": "object"}
    with pytest.raises(RewardError, match=r"Words\.client held object, which is not kept after an episode"):
        _ = restored.client


def test_a_default_of_the_class_does_not_stand_for_a_lost_value(words):
    """Reading it would score what never happened."""
    instance = words.Board()
    instance.pixels = b"x"
    restored = load_state(json.loads(json.dumps(save_state(instance))))
    with pytest.raises(RewardError, match=r"Board\.pixels held bytes"):
        getattr(restored, "pixels", None)


def test_values_that_json_cannot_hold_are_named(words):
    """A list that holds itself; a frozen set stays one, and can be a key; slots are left out."""
    instance = words.Words()
    instance.loop = [instance.board]
    instance.loop.append(instance.loop)
    instance.board = {frozenset({1}): "x"}
    state = json.loads(json.dumps(save_state(instance)))
    assert state["unsaved"] == {"client": "object", "loop": "list"}
    assert load_state(state).board == {frozenset({1}): "x"}
    assert save_state(words.Slots())["attributes"] == {}


def test_a_class_inside_a_function_is_refused(words):
    """Rewards could not import it."""
    with pytest.raises(
        DataError,
        match=r"<locals>.Inner cannot be imported by rewards, because it is defined inside a function",
    ):
        save_state(words.nested())
