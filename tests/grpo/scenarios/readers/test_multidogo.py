"""MultiDoGO: rows of turns become conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.config.scenarios import MultiDoGOSource
from grpo.errors import DataError
from grpo.scenarios.ingest import ingest
from grpo.scenarios.readers.multidogo import read_multidogo
from grpo.scenarios.readers.record import Record

HEADER = "conversationId\tturnNumber\tutteranceId\tutterance\tslot-labels\tintent\n"


def records(tmp_path: Path, *rows: str) -> list[Record]:
    """What is read from a part of the software domain with these rows, `id turn utterance intent` each."""
    path = tmp_path / "turn" / "software" / "train.tsv"
    path.parent.mkdir(parents=True)
    lines = []
    for row in rows:
        conversation, turn, utterance, intent = row.split("|")
        lines.append(f"{conversation}\t{turn}\tu\t{utterance}\tO\t{intent}\n")
    path.write_text(HEADER + "".join(lines))
    return list(read_multidogo(tmp_path, domains=("software",), parts=("train",)))


def test_turns_are_ordered_by_number(tmp_path: Path) -> None:
    """10 comes after 2 and 4.0 between them; the order of the rows does not matter."""
    (record,) = records(tmp_path, "c|10|bye|thankyou", "c|2|hi|openinggreeting", "c|4.0|it broke|reportbrokensoftware")
    assert record.data is not None
    assert record.data["user_responses"] == ["hi", "it broke", "bye"]


def test_a_conversation_is_a_record_at_its_first_row(tmp_path: Path) -> None:
    """Where an utterance has two lines, the next conversation's line is counted behind it."""
    first, second = records(tmp_path, 'a|0|"two\nlines"|contentonly', "a|1|hi|contentonly", "b|0|hi|contentonly")
    assert (first.line, second.line) == (2, 5)
    assert second.data is not None
    assert second.data["id"] == "multidogo-software-b"


def test_the_category_is_the_first_intent_that_tells_something(tmp_path: Path) -> None:
    """Greetings and answers do not tell; several intents of a turn are joined by <div>."""
    telling, silent = records(
        tmp_path,
        "a|0|hi|openinggreeting",
        "a|1|yes, my mouse and updates|confirmation<div>reportbrokensoftware<div>softwareupdate",
        "b|0|hi|openinggreeting",
    )
    assert telling.data is not None
    assert silent.data is not None
    assert telling.data["metadata"]["category"] == "reportbrokensoftware"
    assert silent.data["metadata"]["category"] == "general"


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (("a|x|hi|contentonly",), "no turn number: 'x' (line 2)"),
        (("a|1|hi|contentonly", "a|1.0|ho|contentonly"), "turn number twice: 1.0 (line 3)"),
        (("a|1|hi|contentonly", "a|2|h\to|contentonly"), "wrong number of cells: 7, the header has 6 (line 3)"),
    ],
)
def test_one_bad_row_spoils_its_conversation(tmp_path: Path, rows: tuple[str, ...], problem: str) -> None:
    """A conversation with a turn missing would be another conversation."""
    (record,) = records(tmp_path, *rows)
    assert (record.data, record.problem) == (None, problem)


def test_a_conversation_that_comes_back_is_quarantined(tmp_path: Path) -> None:
    """Two pieces of one conversation are not joined: the second has a taken id."""
    records(tmp_path, "a|0|hi|contentonly", "b|0|hi|contentonly", "a|1|bye|contentonly")
    source = MultiDoGOSource(kind="multidogo", path=str(tmp_path), domains=("software",), parts=("train",))
    counts = ingest((source,), tmp_path / "s.parquet", tmp_path / "q.parquet", max_quarantined_share=0.5)
    assert (counts.scenarios, counts.reasons) == (2, {"duplicate id": 1})


def test_a_missing_part_is_an_error(tmp_path: Path) -> None:
    """The message names the file that was looked for."""
    with pytest.raises(DataError, match=r"no source file at .*turn/finance/dev\.tsv"):
        list(read_multidogo(tmp_path, domains=("finance",), parts=("dev",)))


def test_every_published_conversation_is_a_scenario_or_quarantined(
    published: Callable[[str], Path], tmp_path: Path
) -> None:
    """5599 conversations: software 1653 + 236, finance 1684 + 240, fastfood 1563 + 223; 30 have an empty turn."""
    source = MultiDoGOSource(kind="multidogo", path=str(published("multidogo")))
    counts = ingest((source,), tmp_path / "s.parquet", tmp_path / "q.parquet", max_quarantined_share=0.05)
    assert (counts.records, counts.scenarios, counts.quarantined) == (5599, 5569, 30)
    assert counts.reasons == {"user_responses: user turn N is empty": 30}


def test_published_domains_are_mapped(published: Callable[[str], Path]) -> None:
    """Software is technical support, fastfood is sales, finance is customer service."""
    found = read_multidogo(published("multidogo"), domains=("software", "finance", "fastfood"), parts=("dev",))
    assert Counter(record.data["domain"] for record in found if record.data) == {
        "technical_support": 236,
        "customer_service": 240,
        "sales": 223,
    }
