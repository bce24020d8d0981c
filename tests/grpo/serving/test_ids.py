from __future__ import annotations

import pytest

from grpo.log.ids import ServingIds

IDS = ServingIds(b"salt" * 8)


def test_an_id_belongs_to_the_key_that_got_it():
    """Another key, and another log, do not have it."""
    name = IDS.new_conversation("key")
    assert IDS.owns("key", name)
    assert not IDS.owns("other", name)
    assert not ServingIds(b"other").owns("key", name)
    assert not ServingIds(b"other").is_conversation(name)


def test_a_turn_belongs_to_its_conversation():
    """The choices of a request share its id."""
    first, second = IDS.new_conversation("key"), IDS.new_conversation("key")
    turn = IDS.new_turn(first)
    assert IDS.is_turn(turn, first)
    assert IDS.is_turn(f"{turn}-3", first)
    assert not IDS.is_turn(turn, second)


@pytest.mark.parametrize("place", range(40))
def test_every_changed_character_makes_an_id_unknown(place: int):
    """No part of an id is decoration, and no second spelling of it is known."""
    name = IDS.new_conversation("key")
    for letter in ("a" if name[place] != "a" else "b", name[place].upper() if name[place].isalpha() else "9"):
        changed = name[:place] + letter + name[place + 1 :]
        assert not IDS.is_conversation(changed)
        assert not IDS.owns("key", changed)


@pytest.mark.parametrize("name", ["", "a", "a" * 40, "ü" * 40, "é", "=" * 40, "conversation"])
def test_an_invented_id_is_unknown(name: str):
    """Also texts that are not an id at all."""
    assert not IDS.is_conversation(name)
    assert not IDS.owns("key", name)
    assert not IDS.is_turn(name, name)


def test_ids_of_calls_fit_into_what_other_servers_take():
    """OpenAI's API takes ids of calls of at most 40 characters; `call_ID_0` is that of a turn."""
    assert len(f"call_{IDS.new_turn(IDS.new_conversation('key'))}_0") <= 40
