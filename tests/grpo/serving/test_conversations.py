from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from grpo.log.ids import ServingIds
from grpo.messages import Message, Tool, ToolCall
from grpo.serving.protocol.api_errors import APIError
from grpo.serving.requests.answered_turns import AnsweredTurn
from grpo.serving.requests.conversations import Conversations
from grpo.serving.requests.digests import DigestedMessages, DigestedTools

USER, OTHER = Message(role="user", content="Where is it?"), Message(role="user", content="Thanks")
REPLY = Message(role="assistant", content="On its way.")
VERSION = SimpleNamespace(stopped=None, retired=False)


def conversations(max_tokens: int = 100) -> Conversations:
    return Conversations(max_tokens=max_tokens, new_id=ServingIds(b"salt").new_conversation)


def answered(turn_id: str, *, conversation: str = "c", tokens: int = 10, **fields: Any) -> AnsweredTurn:
    settings = {"owner": "shop", "user": None, "version": VERSION, "tools": (), "messages": (USER, REPLY)} | fields
    transcript = SimpleNamespace(ids=[0] * tokens)
    return AnsweredTurn(turn_id=turn_id, conversation_id=conversation, transcript=transcript, **settings)  # type: ignore[arg-type]


def find(known: Conversations, *messages: Message, **fields: Any) -> Any:
    asked = {"conversation_id": None, "owner": "shop", "user": None, "tools": ()} | fields
    asked["tools"] = DigestedTools.of(asked["tools"])
    return known.find(DigestedMessages.of(messages, asked.pop("calls", ())), **asked)


def test_messages_without_a_reply_begin_a_conversation():
    place = find(conversations(), USER)
    assert (place.joined, place.before, place.new) == ("new", None, (USER,))


def test_a_prefix_is_continued_once_and_then_forked():
    known, turn = conversations(), answered("1")
    known.add(turn, is_last=True)
    place = find(known, USER, REPLY, OTHER)
    assert (place.joined, place.before, place.new, place.conversation_id) == ("prefix", turn, (OTHER,), "c")
    turn.successors = 1
    fork = find(known, USER, REPLY, OTHER)
    assert (fork.joined, fork.before, fork.conversation_id) == ("fork", turn, "c")


@pytest.mark.parametrize(
    "asked", [{"owner": "other"}, {"user": "someone"}, {"tools": (Tool(name="look_up"),)}]
)  # fmt: skip
def test_a_prefix_of_another_owner_user_or_tools_is_unknown(asked: dict[str, Any]):
    known = conversations()
    known.add(answered("1"), is_last=True)
    assert find(known, USER, REPLY, OTHER, **asked).joined == "unknown prefix"


def test_two_turns_with_one_prefix_are_ambiguous():
    known = conversations()
    known.add(answered("1", conversation="a"), is_last=True)
    known.add(answered("2", conversation="b"), is_last=True)
    place = find(known, USER, REPLY, OTHER)
    assert (place.joined, place.before, place.new) == ("ambiguous", None, (USER, REPLY, OTHER))


def test_two_turns_stay_ambiguous_when_a_twin_is_dropped():
    """Of 20 tokens two turns of ten fit; the third drops the first of the twins, whose client may go on."""
    known = conversations(20)
    known.add(answered("1", conversation="a"), is_last=True)
    known.add(answered("2", conversation="b"), is_last=True)
    known.add(answered("3", conversation="c", user="someone"), is_last=True)
    assert known.last_turn("a", "shop") is None
    assert find(known, USER, REPLY, OTHER).joined == "ambiguous"
    known.erase(lambda turn: turn.conversation_id == "b")
    assert find(known, USER, REPLY, OTHER).joined == "unknown prefix"
    known.add(answered("4", conversation="d"), is_last=True)
    assert find(known, USER, REPLY, OTHER).conversation_id == "d"


def test_the_id_of_a_conversation_whose_first_turn_was_aborted_goes_on():
    """Its client was given the id in the header; another key does not have it, and an unknown id is refused."""
    known = conversations()
    known.keep_open("c", "shop")
    place = find(known, USER, conversation_id="c")
    assert (place.conversation_id, place.before, place.new, place.joined) == ("c", None, (USER,), "new")
    for asked in ({"owner": "other", "conversation_id": "c"}, {"conversation_id": "d"}):
        with pytest.raises(APIError, match="no conversation"):
            find(known, USER, **asked)
    turn = answered("1")
    known.add(turn, is_last=True)
    assert find(known, OTHER, conversation_id="c").before is turn


def test_a_conversation_of_another_user_is_refused():
    """An id may reach the wrong user of a website. A request without a user, or after one, goes on."""
    known, turn = conversations(), answered("1", user="alice")
    known.add(turn, is_last=True)
    for user in ("alice", None):
        assert find(known, OTHER, conversation_id="c", user=user).before is turn
    with pytest.raises(APIError, match="the conversation is of another user"):
        find(known, OTHER, conversation_id="c", user="bob")
    asked, tools = DigestedMessages.of((OTHER,)), turn.digested_tools
    for user, refused in (("alice", False), (None, False), ("bob", True)):
        with pytest.raises(APIError, match="another user") if refused else nullcontext():
            known.after("1", asked, owner="shop", user=user, tools=tools, instructions=None)
    anonymous = conversations()
    anonymous.add(answered("1"), is_last=True)
    assert find(anonymous, OTHER, conversation_id="c", user="bob").before is not None


def test_white_space_around_a_text_does_not_matter():
    known, turn = conversations(), answered("1")
    known.add(turn, is_last=True)
    padded = Message(role="user", content="  Where is it?\n"), Message(role="assistant", content="On its way.\n\n")
    assert find(known, *padded, OTHER).before is turn
    assert find(known, *padded, OTHER, conversation_id="c").new == (OTHER,)
    assert find(known, Message(role="user", content="Where  is it?"), REPLY, OTHER).joined == "unknown prefix"


def test_ids_of_calls_tell_equal_conversations_apart():
    """The same messages twice: the client returns the id of its own call, in this turn and after it."""
    known = conversations()
    call = Message(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments={}),))
    result = Message(role="tool", content="1")
    for name in ("1", "2"):
        known.add(answered(name, conversation=name, messages=(USER, call)), is_last=True)
        after = {"conversation": name, "messages": (USER, call, result, REPLY)}
        known.add(answered(f"{name}b", earlier_calls=frozenset({f"call_{name}_0"}), **after), is_last=True)
    for name in ("1", "2"):
        calls = frozenset({f"call_{name}_0"})
        assert find(known, USER, call, result, calls=calls).before.turn_id == name
        assert find(known, USER, call, result, REPLY, OTHER, calls=calls).before.turn_id == f"{name}b"
    assert find(known, USER, call, result, calls=frozenset({"call_3_0"})).joined == "unknown prefix"


def test_an_id_takes_new_messages_or_the_whole_conversation():
    known, turn = conversations(), answered("1")
    known.add(turn, is_last=True)
    for messages in ((OTHER,), (USER, REPLY, OTHER)):
        place = find(known, *messages, conversation_id="c")
        assert (place.joined, place.before, place.new) == ("id", turn, (OTHER,))
        assert place.history == (USER, REPLY, OTHER)
    with pytest.raises(APIError, match="neither the new messages"):
        find(known, USER, Message(role="assistant", content="Another"), OTHER, conversation_id="c")
    with pytest.raises(APIError, match="began with other tools"):
        find(known, OTHER, conversation_id="c", tools=(Tool(name="look_up"),))
    for unknown in ({"conversation_id": "d"}, {"conversation_id": "c", "owner": "other"}):
        with pytest.raises(APIError) as refused:
            find(known, OTHER, **unknown)
        assert refused.value.status == 404
    turn.in_progress = 1
    with pytest.raises(APIError) as refused:
        find(known, OTHER, conversation_id="c")
    assert refused.value.status == 409


@pytest.mark.parametrize("known_as", ["c", None])
def test_a_conversation_whose_engine_has_ended_goes_on_with_another_version(known_as: str | None):
    """Also before its version is let go, while turns of it are in progress."""
    known = conversations()
    known.add(answered("1", version=SimpleNamespace(stopped="killed", retired=False)), is_last=True)
    place = find(known, USER, REPLY, OTHER, conversation_id=known_as)
    assert (place.joined, place.before, place.new) == ("other version", None, (USER, REPLY, OTHER))
    assert place.conversation_id == "c"


def test_a_conversation_of_a_retired_version_goes_on_as_another_one():
    """Its messages are the context of the new one, whose version has not sampled them."""
    known = conversations()
    known.add(answered("1"), is_last=True)
    known.retire(VERSION)  # type: ignore[arg-type]
    assert known.last_turn("c", "shop").transcript is None  # type: ignore[union-attr]
    for asked in ({"conversation_id": "c"}, {}):
        messages = (OTHER,) if asked else (USER, REPLY, OTHER)
        place = find(known, *messages, **asked)
        assert (place.joined, place.before, place.new) == ("other version", None, (USER, REPLY, OTHER))
        assert place.conversation_id == "c"


def test_a_conversation_is_busy_while_a_request_that_continues_no_turn_is_in_progress():
    """Its first one, one after a first turn that failed, and the first one of another version; for its owner alone."""
    first, failed, retired = conversations(), conversations(), conversations()
    failed.keep_open("c", "shop")
    retired.add(answered("1"), is_last=True)
    retired.retire(VERSION)  # type: ignore[arg-type]
    places = {
        first: replace(find(first, USER), conversation_id="c"),
        failed: find(failed, USER, conversation_id="c"),
        retired: find(retired, OTHER, conversation_id="c"),
    }
    assert [(place.before, place.retired_turn) for place in places.values()] == [
        (None, None),
        (None, None),
        (None, "1"),
    ]
    for known, place in places.items():
        known.count_in_progress(place, "shop", 1)
        for owner, status in (("shop", 409), ("other", 404)):
            with pytest.raises(APIError) as refused:
                find(known, OTHER, conversation_id="c", owner=owner)
            assert refused.value.status == status
        known.count_in_progress(place, "shop", -1)
    assert [find(known, OTHER, conversation_id="c").joined for known in (failed, retired)] == ["new", "other version"]


def test_an_answered_turn_is_continued_although_its_request_has_not_ended():
    """The client has got the answer, and may send its next message at once."""
    known = conversations()
    known.count_in_progress(replace(find(known, USER), conversation_id="c"), "shop", 1)
    known.add(answered("1"), is_last=True)
    assert find(known, OTHER, conversation_id="c").joined == "id"


def test_the_least_recently_used_turns_are_dropped_by_their_tokens():
    """Of 30 tokens: turns of 10 each fit three times; the one that was asked for stays."""
    known = conversations(30)
    for name in ("a", "b", "c"):
        known.add(answered(name, conversation=name, messages=(Message(role="user", content=name), REPLY)), is_last=True)
    assert find(known, OTHER, conversation_id="a").joined == "id"
    known.add(answered("d", conversation="d"), is_last=True)
    assert len(known) == 3
    assert known.last_turn("b", "shop") is None
    assert known.last_turn("a", "shop") is not None
    assert find(known, Message(role="user", content="b"), REPLY, OTHER).joined == "unknown prefix"


def test_a_turn_that_is_not_the_last_is_found_by_its_messages_alone():
    """A second choice under `n`."""
    known = conversations()
    known.add(answered("1"), is_last=True)
    second = answered("1-1", messages=(USER, Message(role="assistant", content="Here.")))
    known.add(second, is_last=False)
    assert known.last_turn("c", "shop").turn_id == "1"  # type: ignore[union-attr]
    assert find(known, *second.messages, OTHER).before is second


def test_the_calls_of_a_turn_have_ids():
    calls = (ToolCall(name="f", arguments={}), ToolCall(name="g", arguments={}))
    turn = answered("7", messages=(USER, Message(role="assistant", content="", tool_calls=calls)))
    assert turn.call_ids == ["call_7_0", "call_7_1"]
