from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from grpo.errors import DataError
from grpo.log.folder import Problem
from grpo.log.join import Joined, join
from grpo.log.records import Record
from grpo.scenario import Expected
from tests.grpo.log.fixtures import NOON, feedback, turn


def chains(*records: Record) -> dict[str, str]:
    """Turns of each joined conversation."""
    joined = join(records).conversations
    return {conversation.id: "".join(item.id for item in conversation.turns) for conversation in joined}


def test_turns_join_to_a_conversation_by_their_parents():
    """In any order; two conversations stay apart."""
    other = replace(turn("x"), conversation_id="d")
    assert chains(turn("c", "b"), other, turn("a"), turn("b", "a")) == {"c": "abc", "d": "x"}


def test_a_fork_is_two_conversations():
    """The first continuation keeps the id, as it had it before the second one came."""
    before = (turn("a"), turn("b", "a"), turn("c", "b"))
    assert chains(*before) == {"c": "abc"}
    assert chains(*before, turn("d", "a"), turn("e", "d")) == {"c": "abc", "c~d": "ade"}
    assert join([*before, turn("d", "a")]).counts.forks == 1


def test_of_several_choices_the_continued_one_joins_else_choice_0():
    """n = 2; both continued are a fork."""
    both = [replace(turn(name, "a"), request_id="r", choice=choice) for name, choice in (("b", 1), ("c", 0))]
    assert chains(turn("a"), *both) == {"c": "ac"}
    assert chains(turn("a"), *both, turn("d", "b")) == {"c": "abd"}
    assert chains(turn("a"), *both, turn("d", "b"), turn("e", "c")) == {"c": "abd", "c~c": "ace"}
    assert join([turn("a"), *both]).counts.unjoined == {"choice that was not continued": 1}


def test_a_conversation_ends_with_its_last_answered_turn():
    """An aborted turn and a failed one are counted; the client asked again after the first."""
    aborted = replace(turn("b", "a"), status="aborted", reason="disconnected")
    failed = replace(turn("d", "c"), status="failed", reason="overloaded")
    joined = join([turn("a"), aborted, turn("c", "a"), failed])
    assert chains(turn("a"), aborted, turn("c", "a"), failed) == {"c": "ac"}
    counts = joined.counts
    assert (counts.turns, counts.answered, counts.aborted, counts.failed) == (4, 2, 1, 1)
    assert counts.forks == 0


@pytest.mark.parametrize(
    ("records", "reasons"),
    [
        ([turn("b", "a")], {"unknown parent": 1}),
        ([turn("b", "a"), turn("c", "b")], {"unknown parent": 2}),
        ([replace(turn("a"), conversation_id="d"), turn("b", "a")], {"parent of another conversation": 1}),
        ([turn("a", "b"), turn("b", "a")], {"circular parents": 2}),
    ],
)
def test_answered_turns_without_a_conversation_are_counted_by_reason(records: list[Record], reasons: dict[str, int]):
    """Retention removed the first day, a client invented an id, or a record was changed."""
    counts = join(records).counts
    assert counts.unjoined == reasons


def judged(*records: Record) -> Any:
    [conversation] = join([turn("a"), turn("b", "a"), *records]).conversations
    return conversation


def test_the_last_feedback_wins_field_by_field():
    """A later event that is silent about a field leaves it."""
    first = feedback("f", 60, rating=0.0, success=False, comment="bad")
    later = feedback("g", 90, rating=1.0, success=True)
    for order in ([first, later], [later, first]):
        judgement = judged(*order).judgement
        assert (judgement.rating, judgement.success, judgement.comment) == (1.0, True, "bad")


def test_feedback_on_turns_counts_where_the_conversation_has_none():
    """Ratings 0 and 1 of its turns are 0.5 for it; one on the conversation replaces them."""
    on_turns = [feedback("f", rating=0.0, turn_id="a"), feedback("g", rating=1.0, turn_id="b", success=True)]
    assert judged(*on_turns).judgement.rating == 0.5
    assert judged(*on_turns).reward == 1.0
    assert judged(*on_turns, feedback("h", rating=0.2, success=False)).judgement.rating == 0.2
    assert judged(*on_turns, feedback("h", success=False)).reward == 0.0
    assert judged(*on_turns).turn_judgements["a"].rating == 0.0


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (feedback("f", conversation_id="x"), "unknown conversation"),
        (feedback("f", turn_id="x"), "unknown turn"),
        (feedback("f", turn_id="d"), "turn of another conversation"),
        (feedback("f", turn_id="e"), "turn in no conversation"),
        (feedback("f", conversation_id="e"), "turn in no conversation"),
        (feedback("f", key="thief", rating=1.0), "another key's conversation"),
        (feedback("f", key="thief", turn_id="a", correction="Paid."), "another key's conversation"),
        (feedback("f", scopes=("feedback",), success=True), "outcome without the scope"),
        (feedback("f", scopes=("admin", "feedback"), success=False), "outcome without the scope"),
        (feedback("f", scopes=(), expected=Expected(facts=("7",))), "outcome without the scope"),
        (feedback("f", scopes=(), world={"orders": {}}), "outcome without the scope"),
    ],
)
def test_feedback_that_cannot_be_joined_is_quarantined_with_its_reason(record: Record, reason: str):
    """Invented ids, turns that were not answered, another key's conversation, and outcomes that a key may not give."""
    other = replace(turn("d"), conversation_id="d")
    failed = replace(turn("e", "a"), status="failed", reason="overloaded")
    alone = replace(turn("f"), conversation_id="e", status="failed", reason="overloaded")
    joined = join([turn("a"), other, failed, alone, record])
    assert [(item.feedback, item.reason) for item in joined.quarantined] == [(record, reason)]
    assert joined.counts.quarantined_feedback == {reason: 1}
    assert joined.counts.joined_feedback == 0


def test_an_outcome_without_the_scope_is_dropped_and_the_rest_of_its_feedback_is_used():
    """As in a log that was written before records had scopes; the count says how many lost their outcome."""
    old = feedback("f", scopes=(), rating=0.5, comment="slow", success=True, world={"orders": {}})
    joined = join([turn("a"), old])
    judgement = joined.conversations[0].judgement
    assert (judgement.rating, judgement.comment, judgement.success, judgement.world) == (0.5, "slow", None, None)
    assert (joined.counts.joined_feedback, joined.counts.dropped_outcomes, joined.quarantined) == (1, 1, ())


def test_an_admin_may_judge_the_conversation_of_another_key():
    """The record says that it was one when the feedback was accepted."""
    judged = feedback("f", key="operator", scopes=("admin", "feedback", "outcomes"), success=True)
    joined = join([turn("a", key="shop"), judged])
    assert joined.conversations[0].reward == 1.0


def test_ten_thousand_repeated_events_in_any_order_give_the_same_conversations():
    """2,000 events on 500 turns, each five times; some of them of unknown conversations."""
    rng = random.Random(0)
    turns = [
        replace(turn(f"{k}-{name}", f"{k}-a" if name == "b" else None), conversation_id=str(k))
        for k in range(250)
        for name in "ab"
    ]
    events = [
        feedback(
            f"f{k}",
            rng.randrange(100),
            conversation_id=str(rng.randrange(260)),
            turn_id=rng.choice([None, f"{rng.randrange(250)}-b"]),
            rating=rng.choice([None, 0.0, 1.0]),
            success=rng.choice([None, True, False]),
            correction=rng.choice([None, "No.", "Yes."]),
        )
        for k in range(2_000)
    ]
    once = join([*turns, *events])
    assert once.counts.feedback == 2_000
    assert once.counts.joined_feedback + sum(once.counts.quarantined_feedback.values()) == 2_000
    assert once.counts.quarantined_feedback["unknown conversation"] > 10
    for seed in range(3):
        repeated: list[Record] = [*turns, *events * 5]
        random.Random(seed).shuffle(repeated)
        again = join(repeated)
        assert again.conversations == once.conversations
        assert again.quarantined == once.quarantined
        assert again.counts.duplicate_feedback == 8_000


def test_of_two_different_events_with_one_id_the_first_counts():
    """The idempotency key was used again; also at the same time, where the content decides."""
    first, second = feedback("f", 60, rating=0.0), feedback("f", 61, rating=1.0)
    assert judged(first, second).judgement == judged(second, first).judgement
    assert judged(second, first).judgement.rating == 0.0
    same = replace(second, time=first.time)
    assert judged(first, same) == judged(same, first)


def test_a_conversation_has_its_labels_and_its_outcome():
    """The client's category, and the version of the last turn. Consent holds only if all turns have it."""
    expected = Expected(state={"order": "refunded"})
    first = replace(turn("a"), metadata={"category": "refund", "domain": "sales"}, tools=({"name": "f"},))
    last = replace(turn("b", "a"), metadata=first.metadata, model="desk/2", tools=({"name": "g"}, {"name": "f"}))
    events = feedback("f", success=True, expected=expected, rating=0.5, world={"orders": {}})
    [conversation] = join([first, last, events]).conversations
    assert (conversation.category, conversation.domain, conversation.model) == ("refund", "sales", "desk/2")
    judgement = conversation.judgement
    assert (conversation.reward, judgement.rating) == (1.0, 0.5)
    assert (judgement.expected, judgement.world) == (expected, {"orders": {}})
    assert [message.content for message in conversation.messages] == [
        *("Question a?", "Answer a.", "Question b?", "Answer b."),
    ]
    assert [tool["name"] for tool in conversation.tools] == ["f", "g"]
    assert (conversation.consent, conversation.licence) == ("training", "own")
    [without] = join([first, replace(last, consent="")]).conversations
    assert without.consent == ""


def test_damage_is_counted_and_keeps_its_place():
    """It does not stop the join."""
    damage = Problem(place="s.log", line=3, problem="damaged record: the checksum differs")
    joined: Joined = join([turn("a"), damage])
    assert joined.problems == (damage,)
    assert joined.counts.flat()["damaged"] == 1


def test_all_counts_have_a_name():
    """Reasons are part of it."""
    counts = join([turn("b", "a"), feedback("f", conversation_id="x")]).counts.flat()
    assert counts["turns unjoined: unknown parent"] == counts["feedback quarantined: unknown conversation"] == 1
    assert (counts["turns"], counts["conversations"]) == (1, 0)
    assert {type(count) for count in counts.values()} == {int}


@pytest.mark.parametrize("rating", [-0.1, 1.1])
def test_a_rating_is_from_0_to_1(rating: float):
    """Both ends are ratings."""
    assert [feedback("f", rating=end).rating for end in (0.0, 1.0)] == [0.0, 1.0]
    with pytest.raises(DataError, match=rf"^feedback f: rating {rating} is outside of 0 to 1$"):
        feedback("f", rating=rating)


def test_the_time_of_a_record_needs_a_zone():
    """A naive time would be another instant on another machine."""
    with pytest.raises(DataError, match="has no time zone"):
        feedback("f", time=(NOON + timedelta(hours=1)).replace(tzinfo=None))
