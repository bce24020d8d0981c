from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import FileSource, ServedSource
from grpo.errors import BudgetError
from grpo.log import LoggedConversation, append
from grpo.log.writer import ServingLog
from grpo.messages import Message
from grpo.retraining.curation import ACCEPTED, REDACTED, REJECTED, CurationCounts
from grpo.scenario import Origin, Scenario
from grpo.scenarios.table import read_scenarios
from tests.grpo.log.fixtures import feedback, turn, write_segment
from tests.grpo.retraining.curating import curate

BASE = Scenario(id="base-1", user_responses=("My kettle broke after two days, please replace it.",))
HELDOUT = Scenario(id="base-2", user_responses=("I was charged twice for the same lamp, what now?",))
SETTINGS = CurationSettings(licences=("own",), required_fields=("world",), max_unreadable_fraction=0.5)


def record(name: str, text: str, **metadata: str) -> dict[str, Any]:
    known = {"licence": "own", "consent": "training", **metadata}
    return {"id": name, "user_responses": [text], "world": {"orders": {}, "shop": 1}, "metadata": known}


def run(folder: Path, *records: dict[str, Any] | str, settings: CurationSettings = SETTINGS) -> CurationCounts:
    source = folder / "new.jsonl"
    source.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in records) + "\n")
    sources = [FileSource(kind="jsonl", path=str(source))]
    return curate(sources, folder, known=[BASE], heldout=[HELDOUT], settings=settings)


def ids(folder: Path, table: str) -> list[str]:
    return [one.id for one in read_scenarios(folder / table)]


def test_each_conversation_is_accepted_or_rejected_by_one_filter(tmp_path: Path):
    """Twelve records, one for each way out, and the counts add up to twelve."""
    counts = run(
        tmp_path,
        record("good", "Where is the parcel with my blue teapot?"),
        "{broken",
        {**record("no-user", " ")},
        record("good", "The id is taken by another conversation."),
        {**record("no-world", "Hello, I have a question about a chair."), "world": {}},
        record("no-licence", "Please cancel the order of the desk.", licence=""),
        record("other-licence", "Please cancel the order of the sofa.", licence="CC-BY-NC"),
        record("no-consent", "Can I pay the invoice next month?", consent=""),
        record("other-consent", "Can I pay the invoice in two parts?", consent="support"),
        record("heldout", "I was charged twice for the same lamp, what now??"),
        record("base", "my kettle broke, after two days: please replace it"),
        record("again", "Where is the parcel with my blue teapots?"),
    )
    assert counts.rejected == {
        "schema: broken JSON": 1,
        "schema: user_responses: user turn N is empty": 1,
        "schema: duplicate id": 1,
        "required_fields: no world": 1,
        "licence: no licence": 1,
        "licence: licence not allowed": 1,
        "consent: no consent": 1,
        "consent: consent not allowed": 1,
        "contamination: like a held-out scenario": 1,
        "duplicates: duplicate of": 1,
        "duplicates: near-duplicate of": 1,
    }
    assert counts.records == counts.accepted + sum(counts.rejected.values()) == 12
    assert ids(tmp_path, ACCEPTED) == ["good"]
    assert ids(tmp_path, REDACTED) == ["good", "heldout", "base", "again"]
    assert len(pq.read_table(tmp_path / REJECTED)) == 11


def test_rejected_conversations_leave_no_text(tmp_path: Path):
    """A conversation without consent leaves an id, a filter and a reason; its text is in none of the tables."""
    run(tmp_path, record("secret", "My cousin Egon owns a zeppelin.", consent=""))
    [row] = pq.read_table(tmp_path / REJECTED).to_pylist()
    assert row == {"record": "secret", "filter": "consent", "reason": "no consent"}
    assert ids(tmp_path, REDACTED) == []


def test_accepted_conversations_have_no_personal_data(tmp_path: Path):
    """Counted by kind, in the table as in the counts."""
    counts = run(tmp_path, record("one", "Mail anna@example.org about the teapot."), record("two", "A lamp, please!"))
    assert (counts.redacted, counts.redacted_conversations) == ({"email": 1}, 1)
    first, _ = read_scenarios(tmp_path / ACCEPTED)
    assert first.user_responses == ("Mail [email] about the teapot.",)


def test_a_conversation_that_is_too_long_once_redacted_is_rejected(tmp_path: Path):
    """1990 times "Al, " are 7960 characters, and 1990 times "[name], " twice as many: the others are taken in."""
    long = {**record("long", "Al, " * 1990), "expected": {"facts": ["My name is Al."]}}
    counts = run(tmp_path, long, record("good", "Where is the parcel with my blue teapot?"))
    assert counts.rejected == {"redaction: invalid once redacted": 1}
    assert ids(tmp_path, ACCEPTED) == ids(tmp_path, REDACTED) == ["good"]
    [row] = pq.read_table(tmp_path / REJECTED).to_pylist()
    assert row["reason"] == (
        "invalid once redacted: user_responses: over-long user turn 0: 15920 characters, at most 8000"
    )


def test_contamination_is_detected_with_another_name(tmp_path: Path):
    """Personal data is masked before the comparison: the same text of another person is a duplicate."""
    heldout = Scenario(id="h", user_responses=("My name is Karl Otto Wolkenstein. A lamp!",))
    source = tmp_path / "new.jsonl"
    source.write_text(json.dumps(record("one", "My name is Jo Li. A lamp!")) + "\n")
    sources = [FileSource(kind="jsonl", path=str(source))]
    counts = curate(sources, tmp_path, known=[], heldout=[heldout], settings=SETTINGS)
    assert counts.rejected == {"contamination: like a held-out scenario": 1}


def test_a_held_out_conversation_is_not_contaminated_by_itself(tmp_path: Path):
    """It comes again with the log, and stays where it was."""
    earlier = Scenario(id="conversation-1", user_responses=("Where is the parcel with my blue teapot?",))
    source = tmp_path / "new.jsonl"
    source.write_text(json.dumps(record("conversation-1", "Where is the parcel with my blue teapot?")) + "\n")
    sources = [FileSource(kind="jsonl", path=str(source))]
    assert curate(sources, tmp_path, known=[], heldout=[earlier], settings=SETTINGS).accepted == 1


def test_too_many_unreadable_records_stop_the_run(tmp_path: Path):
    """Two of three are more than half; the first is named."""
    with pytest.raises(BudgetError, match=r"2 of 3 conversations .* at most 50\.0%.*new\.jsonl:1 broken JSON"):
        run(tmp_path, "{", "[", record("good", "Where is my parcel?"))


def spoken(name: str, day: int, words: str) -> LoggedConversation:
    """A conversation of this day (November 2021) with a world of its own."""
    return LoggedConversation(
        id=name,
        time=datetime(2021, 11, day, tzinfo=UTC),
        model="desk/1",
        messages=(Message(role="user", content=words), Message(role="assistant", content="One moment.")),
        world={"price": 1},
        licence="own",
        consent="training",
    )


def test_damage_in_a_log_is_rejected_with_its_place_and_the_rest_is_read(tmp_path: Path):
    """Three days of another server's conversations, as tables: the table of the first day has lost its end."""
    folder = tmp_path / "log"
    words = {20: "Where is my teapot?", 21: "Please cancel the desk.", 22: "Is the sofa blue?"}
    logged = [item for item in append(folder, (spoken(str(day), day, text) for day, text in words.items())) if item]
    append(folder, ())  # opening the log compacts what is closed
    [lost] = folder.glob("turns/2021-11-20/*.parquet")
    lost.write_bytes(lost.read_bytes()[:-30])
    sources = [ServedSource(kind="served", path=str(folder))]
    counts = curate(sources, tmp_path, known=[], heldout=[], settings=SETTINGS)
    assert (counts.records, counts.accepted) == (3, 2)
    assert counts.rejected == {"schema: damaged file": 1}
    assert ids(tmp_path, ACCEPTED) == [f"conversation-{item.conversation_id}" for item in logged[1:]]
    places = {row["record"] for row in pq.read_table(tmp_path / REJECTED).to_pylist()}
    assert places == {f"{lost}:1"}


def test_an_unstorable_conversation_is_rejected_and_the_rest_is_read(tmp_path: Path):
    """1e999 is JSON, and infinite once it is read."""
    good, bad = record("good", "Where is my teapot?"), json.dumps(record("bad", "Please cancel the desk."))
    counts = run(tmp_path, good, bad.replace('"shop": 1', '"shop": 1e999'))
    assert counts.rejected == {"schema: cannot be stored as JSON": 1}
    assert ids(tmp_path, ACCEPTED) == ["good"]


def test_the_join_of_a_serving_log_is_counted(tmp_path: Path):
    """Three turns in two conversations, one damaged line, and feedback on one conversation and on an unknown one."""
    write_segment(
        tmp_path / "served",
        turn("a"),
        turn("b", "a"),
        replace(turn("d"), conversation_id="d", consent=""),
        feedback("f", success=True, world={"orders": {}}),
        feedback("g", conversation_id="x"),
        damage=b"damage\n",
    )
    sources = [ServedSource(kind="served", path=str(tmp_path / "served"))]
    settings = CurationSettings(licences=("own",), max_unreadable_fraction=0.5)
    counts = curate(sources, tmp_path, known=[], heldout=[], settings=settings)
    assert (counts.records, counts.accepted) == (3, 1)
    assert counts.rejected == {"schema: damaged record": 1, "consent: no consent": 1}
    assert ids(tmp_path, ACCEPTED) == ["conversation-c"]
    nonzero = {name: count for name, count in counts.served.items() if count}
    assert nonzero == {
        "turns": 3,
        "answered": 3,
        "damaged": 1,
        "conversations": 2,
        "feedback": 2,
        "joined_feedback": 1,
        "feedback quarantined: unknown conversation": 1,
    }


def test_a_conversation_has_the_keys_that_sent_it_or_a_copy_of_it(tmp_path: Path):
    """Keys a, b and c sent one text, b first; a sent another one as well, for a user. Hashes are kept, no names."""

    def said(name: str, key: str, text: str, **changes: Any) -> Any:
        made = turn(name)
        message = replace(made.turns[0], message=Message(role="user", content=text))
        turns = (message, made.turns[1])
        return replace(made, conversation_id=name, key=key, turns=turns, **changes)

    async def serve() -> None:
        async with ServingLog(tmp_path / "served") as log:
            await log.append(said("c", "key-a", "Where is the parcel with my blue teapot?"))
            await log.append(said("b", "key-b", "Where is the parcel with my blue teapots?"))
            await log.append(said("d", "key-c", "Where is the parcel with my blue teapot??"))
            await log.append(said("e", "key-a", "Can I pay the invoice later?", user="user-u"))

    asyncio.run(serve())
    sources = [ServedSource(kind="served", path=str(tmp_path / "served"))]
    settings = CurationSettings(licences=("own",))
    curate(sources, tmp_path, known=[], heldout=[], settings=settings)
    origins = {item.id: item.metadata.origin for item in read_scenarios(tmp_path / ACCEPTED)}
    assert origins == {
        "conversation-b": Origin(keys=("key-b", "key-a", "key-c")),
        "conversation-e": Origin(keys=("key-a",), user="user-u"),
    }


def test_a_conversation_of_another_source_is_of_an_unknown_key(tmp_path: Path):
    """It is a conversation all the same, and bounded."""
    run(tmp_path, record("good", "Where is the parcel with my blue teapot?"))
    [item] = read_scenarios(tmp_path / ACCEPTED)
    assert item.metadata.origin == Origin(keys=("",), user="")
