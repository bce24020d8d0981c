from __future__ import annotations

import asyncio
import functools
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import grpo.log
from grpo.config.scenarios import ServedSource
from grpo.errors import DataError
from grpo.log import LoggedConversation, LoggedIds, ServingLog, append_conversation
from grpo.log.compaction import erase_records
from grpo.log.folder import ServedLog
from grpo.log.join import Joined, join
from grpo.log.logged_logprobs import read_claims
from grpo.log.records import Feedback, ServedTurn
from grpo.log.salt import hash_user, read_salt
from grpo.messages import Message, Tool, ToolCall
from grpo.scenario import Expected, Scenario
from grpo.scenarios.sources import read_records

NOON = datetime(2021, 11, 20, 12, tzinfo=UTC)
LOOK_UP = Tool(name="look_up", parameters={"type": "object"})
SPOKEN = (
    Message(role="assistant", content="Hello!"),
    Message(role="user", content="My parcel is lost."),
    Message(role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": "17"}),)),
    Message(role="tool", content='{"state": "lost"}'),
    Message(role="assistant", content="It is lost."),
)
THANKS = Message(role="user", content="Thank you.")


def conversation(name: str = "a", **changes: Any) -> LoggedConversation:
    """A conversation of four messages after a greeting, with a call and its result."""
    fields = {"id": name, "time": NOON, "model": "desk/1", "messages": SPOKEN, "tools": (LOOK_UP,)}
    return LoggedConversation.model_validate({**fields, "consent": "training", "licence": "own", **changes})


def append(folder: Path, *conversations: LoggedConversation) -> list[LoggedIds]:
    """Ids of conversations that were not erased."""
    return [ids for ids in grpo.log.append(folder, conversations) if ids is not None]


def joined(folder: Path) -> Joined:
    return join(ServedLog(folder).read())


def test_a_conversation_is_turns_that_end_with_its_replies(tmp_path: Path):
    """Three replies: three turns, each the parent of the next one, without tokens."""
    [ids] = append(tmp_path, conversation(category="missing", domain="sales"))
    [read] = joined(tmp_path).conversations
    assert read.id == ids.conversation_id
    assert tuple(turn.id for turn in read.turns) == ids.turn_ids
    assert [len(turn.turns) for turn in read.turns] == [1, 2, 2]
    assert [turn.parent for turn in read.turns] == [None, *ids.turn_ids[:2]]
    assert read.messages == SPOKEN
    assert [dict(tool) for tool in read.tools] == [
        {"name": "look_up", "description": "", "parameters": {"type": "object"}}
    ]
    assert (read.model, read.category, read.domain, read.consent, read.licence) == (
        *("desk/1", "missing", "sales", "training", "own"),
    )
    assert not any(turn.token_ids.size for turn in read.turns)


def test_an_outcome_is_feedback_on_the_conversation(tmp_path: Path):
    """Rating, comment, success, expected outcome and records; without any of them there is no feedback."""
    expected, world = Expected(facts=("lost",)), {"orders": {"17": {"state": "lost"}}}
    given = {"rating": 0.25, "comment": "slow", "success": False, "expected": expected, "world": world}
    append(tmp_path, conversation("a", **given), conversation("b"))
    counts = joined(tmp_path).counts
    first, second = sorted(joined(tmp_path).conversations, key=lambda item: item.judgement.rating is None)
    assert {name: getattr(first.judgement, name) for name in given} == given
    assert (first.reward, second.reward) == (0.0, None)
    assert (counts.joined_feedback, counts.dropped_outcomes, counts.quarantined_feedback) == (1, 0, {})


def test_messages_after_the_last_reply_are_logged_but_do_not_belong_to_the_conversation(tmp_path: Path):
    """As for a turn of `grpo serve` that was not answered. Once it is answered, it belongs to it."""
    append(tmp_path, conversation(messages=(*SPOKEN, THANKS)))
    assert joined(tmp_path).conversations[0].messages == SPOKEN
    assert (joined(tmp_path).counts.answered, joined(tmp_path).counts.aborted) == (3, 1)
    answered = (*SPOKEN, THANKS, Message(role="assistant", content="Bye."))
    append(tmp_path, conversation(messages=answered))
    [read] = joined(tmp_path).conversations
    assert read.messages == answered


def test_a_conversation_that_is_appended_again_counts_once(tmp_path: Path):
    """With its outcome; the same name at another key is another conversation."""

    async def of_another_key() -> None:
        async with ServingLog(tmp_path) as log:
            await append_conversation(log, conversation(), key="shop", scopes=("log",))

    first = append(tmp_path, conversation(success=True))
    assert append(tmp_path, conversation(success=True)) == first
    counts = joined(tmp_path).counts
    assert (counts.conversations, counts.duplicate_turns, counts.duplicate_feedback) == (1, 3, 1)
    asyncio.run(of_another_key())
    assert joined(tmp_path).counts.conversations == 2


def test_the_last_outcome_holds(tmp_path: Path):
    """A reviewer corrects the outcome, and the conversation is appended again."""
    append(tmp_path, conversation(success=True))
    append(tmp_path, conversation(success=False))
    assert joined(tmp_path).conversations[0].reward == 0.0


def test_outcomes_of_a_key_without_their_scope_do_not_count(tmp_path: Path):
    """Readers decide by the scopes in the record; the rating is used."""

    async def send() -> None:
        async with ServingLog(tmp_path) as log:
            await append_conversation(log, conversation(success=True, rating=1.0), key="shop", scopes=("log",))

    asyncio.run(send())
    [read] = joined(tmp_path).conversations
    assert (read.judgement.success, read.judgement.rating) == (None, 1.0)


def test_an_appended_conversation_becomes_a_scenario(tmp_path: Path):
    """The user's turns, the greeting as context, and the call with its result; the replies are references."""
    [ids] = append(tmp_path, conversation())
    [record] = read_records(ServedSource(kind="served", path=str(tmp_path)))
    scenario = Scenario.model_validate(record.data)
    assert scenario.id == f"conversation-{ids.conversation_id}"
    assert scenario.user_responses == ("My parcel is lost.",)
    assert scenario.world["recorded"][0]["result"] == {"state": "lost"}
    assert "Hello!" in scenario.context


def test_log_probabilities_of_appended_turns_are_counted_as_unchecked(tmp_path: Path):
    """The log does not have them."""
    append(tmp_path, conversation())
    claims, unchecked = read_claims(ServedLog(tmp_path).read(), "desk")
    assert (claims, unchecked) == ([], {"no sampled tokens": 3})


def test_a_conversation_without_a_reply_is_refused():
    """It would be no conversation of the log."""
    with pytest.raises(ValidationError, match=r"conversation a has no reply of the assistant\. Leave it out"):
        conversation(messages=(THANKS,))


def test_a_conversation_cannot_begin_in_the_future(tmp_path: Path):
    """An erasure holds for what began before it, so a later time would escape it."""
    later = datetime.now(UTC) + timedelta(days=1)
    with pytest.raises(DataError, match=r"conversation a begins at .*, which is in the future\. Give the time"):
        append(tmp_path, conversation(time=later))


@pytest.mark.parametrize(
    "time", [datetime(1970, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))]
)
def test_a_conversation_of_a_clock_that_was_not_set_is_refused(tmp_path: Path, time: datetime):
    """The second one has no time in UTC."""
    with pytest.raises(DataError, match=r"conversation a begins at .*, which is before 2000\. Give the time"):
        append(tmp_path, conversation(time=time))


@pytest.mark.parametrize(
    "price", [10**5000, functools.reduce(lambda inner, _: [inner], range(2000), 0)], ids=["int", "deep"]
)
def test_an_outcome_that_json_cannot_hold_is_an_error_of_the_data(tmp_path: Path, price: object):
    """A number of 5,000 digits, and 2,000 lists inside each other."""
    with pytest.raises(DataError, match="the outcome of conversation a cannot be stored as JSON"):
        append(tmp_path, conversation(world={"price": price}))
    assert list(ServedLog(tmp_path).read()) == []


def test_a_conversation_that_json_cannot_hold_leaves_nothing_in_the_log(tmp_path: Path):
    """NaN in its records: its turns are not written either."""
    with pytest.raises(DataError, match="cannot be stored as JSON"):
        append(tmp_path, conversation(world={"price": float("nan")}))
    assert list(ServedLog(tmp_path).read()) == []


def test_what_was_erased_is_not_appended_again(tmp_path: Path):
    """A conversation by its id, and the earlier conversations of an erased user; later ones of the user are logged."""
    [first] = append(tmp_path, conversation("a"))
    append(tmp_path, conversation("b", user="ann"), conversation("c", user="bob"))
    erase_records(tmp_path, conversation_id=first.conversation_id)
    erase_records(tmp_path, user=hash_user(read_salt(tmp_path), "ann"))
    again = [conversation("a"), conversation("b", user="ann"), conversation("d", user="ann", time=NOON)]
    assert grpo.log.append(tmp_path, again) == [None, None, None]
    assert len(append(tmp_path, conversation("e", user="ann", time=datetime.now(UTC)))) == 1
    records = list(ServedLog(tmp_path).read())
    assert all(isinstance(record, ServedTurn | Feedback) for record in records)
    assert joined(tmp_path).counts.conversations == 2


def test_a_program_with_an_event_loop_can_append(tmp_path: Path):
    """As in a notebook, in which a loop always runs."""

    async def cell() -> list[LoggedIds]:
        return append(tmp_path, conversation())

    assert len(asyncio.run(cell())) == 1
    assert joined(tmp_path).counts.conversations == 1


def test_feedback_on_an_appended_conversation_is_that_of_its_key(tmp_path: Path):
    """Its ids carry the owner, like those that the server gives out."""

    async def send() -> LoggedIds | None:
        async with ServingLog(tmp_path) as log:
            ids = await append_conversation(log, conversation(), key="shop", scopes=("log",))
            assert ids is not None
            assert log.ids.owns("shop", ids.conversation_id)
            assert not log.ids.owns("other", ids.conversation_id)
            assert all(log.ids.is_turn(turn, ids.conversation_id) for turn in ids.turn_ids)
            return ids

    assert asyncio.run(send()) is not None


def test_the_tables_of_a_log_without_tokens_are_read_back(tmp_path: Path):
    """From segments and from Parquet: closing the log and opening it again compacts."""
    append(tmp_path, conversation("a", success=True))
    before = joined(tmp_path).conversations
    append(tmp_path)
    assert not list(tmp_path.glob("segments/*.log"))
    after = joined(tmp_path).conversations
    assert after == before
    assert after[0].turns[0].token_ids.dtype == np.int32
