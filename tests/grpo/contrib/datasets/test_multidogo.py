"""MultiDoGO: rows of turns become conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.config.scenarios import MultiDoGOSource
from grpo.contrib.datasets.multidogo import read_multidogo
from grpo.errors import DataError
from grpo.scenarios.ingest import ingest
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import content_hash

HEADER = "conversationId\tturnNumber\tutteranceId\tutterance\tslot-labels\tintent\n"


def records(tmp_path: Path, *rows: str) -> list[SourceRecord]:
    """Records of a part of the software domain with these rows, `id turn utterance intent` each."""
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
    """An utterance of two lines counts as two for the next conversation's line."""
    first, second = records(tmp_path, 'a|0|"two\nlines"|contentonly', "a|1|hi|contentonly", "b|0|hi|contentonly")
    assert (first.line, second.line) == (2, 5)
    assert second.data is not None
    assert second.data["id"] == "multidogo-software-b"


def test_the_category_is_the_first_intent_other_than_a_courtesy(tmp_path: Path) -> None:
    """Greetings and answers are courtesies; several intents of a turn are joined by <div>."""
    named, general = records(
        tmp_path,
        "a|0|hi|openinggreeting",
        "a|1|yes, my mouse and updates|confirmation<div>reportbrokensoftware<div>softwareupdate",
        "b|0|hi|openinggreeting",
    )
    assert named.data is not None
    assert general.data is not None
    assert named.data["metadata"]["category"] == "reportbrokensoftware"
    assert general.data["metadata"]["category"] == "general"


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (("a|x|hi|contentonly",), "no turn number: 'x' (line 2)"),
        (("a|1|hi|contentonly", "a|1.0|ho|contentonly"), "turn number twice: 1.0 (line 3)"),
        (("a|1|hi|contentonly", "a|2|h\to|contentonly"), "wrong number of cells: 7, the header has 6 (line 3)"),
    ],
)
def test_one_bad_row_quarantines_its_conversation(tmp_path: Path, rows: tuple[str, ...], problem: str) -> None:
    """A conversation without the turn would be another one."""
    (record,) = records(tmp_path, *rows)
    assert (record.data, record.problem) == (None, problem)


@pytest.mark.parametrize("number", ["nan", "inf", "-Infinity", ""])
def test_a_turn_number_that_cannot_be_ordered_is_a_problem(tmp_path: Path, number: str) -> None:
    """`nan` is neither before nor after 1."""
    (record,) = records(tmp_path, "a|1|hi|contentonly", f"a|{number}|ho|contentonly")
    assert record.problem == f"no turn number: {number!r} (line 3)"


def sentences(tmp_path: Path, *rows: str) -> list[SourceRecord]:
    """Records that are read at sentence level from these rows, `id turn sentence utterance intent` each."""
    path = tmp_path / "sentence" / "media" / "test.tsv"
    path.parent.mkdir(parents=True)
    header = HEADER.replace("turnNumber\t", "turnNumber\tsentenceNumber\t")
    lines = ["\t".join([*row.split("|")[:3], "u", row.split("|")[3], "O", row.split("|")[4]]) + "\n" for row in rows]
    path.write_text(header + "".join(lines))
    return list(read_multidogo(tmp_path, domains=("media",), parts=("test",), level="sentence"))


def test_sentences_of_one_turn_are_one_turn(tmp_path: Path) -> None:
    """They are joined in the order of their numbers, without empty ones."""
    (record,) = sentences(
        tmp_path,
        "a|2|1|Can you help?|contentonly",
        "a|2|0|My TV is dark.|viewbillsmedia",
        "a|0|0|hi|openinggreeting",
        "a|2|2||contentonly",
    )
    assert record.data is not None
    assert record.data["user_responses"] == ["hi", "My TV is dark. Can you help?"]
    assert record.data["metadata"]["category"] == "viewbillsmedia"
    assert record.data["domain"] == "customer_service"


def test_a_duplicate_sentence_number_is_a_problem(tmp_path: Path) -> None:
    """The order of the sentences is unknown."""
    (record,) = sentences(tmp_path, "a|0|1|hi|contentonly", "a|0|1|ho|contentonly")
    assert record.problem == "sentence number twice: 1 (line 3)"


def test_the_publishers_repository_is_read_as_it_is(tmp_path: Path) -> None:
    """Its folders have other names."""
    path = tmp_path / "data" / "paper_splits" / "splits_annotated_at_turn_level" / "airline" / "test.tsv"
    path.parent.mkdir(parents=True)
    path.write_text(HEADER + "a\t0\tu\thi\tO\topeninggreeting\n")
    (record,) = read_multidogo(tmp_path, domains=("airline",), parts=("test",))
    assert record.data is not None
    assert record.data["id"] == "multidogo-airline-a"


def test_all_missing_parts_are_named_at_once_with_the_existing_ones(tmp_path: Path) -> None:
    """Of two domains one part exists."""
    records(tmp_path, "a|0|hi|contentonly")
    source = MultiDoGOSource(
        kind="multidogo", path=str(tmp_path), domains=("software", "media"), parts=("train", "test")
    )
    expected = (
        r"has no software/test \(turn/software/test\.tsv\), media/train \(turn/media/train\.tsv\), "
        r"media/test \(turn/media/test\.tsv\)\. There is software/train\. Correct the source's path"
    )
    with pytest.raises(DataError, match=expected):
        content_hash([source])


def test_a_conversation_that_comes_back_is_quarantined(tmp_path: Path) -> None:
    """Two pieces of one conversation are not joined: the second has a duplicate id."""
    records(tmp_path, "a|0|hi|contentonly", "b|0|hi|contentonly", "a|1|bye|contentonly")
    source = MultiDoGOSource(kind="multidogo", path=str(tmp_path), domains=("software",), parts=("train",))
    counts = ingest((source,), tmp_path / "s.parquet", tmp_path / "q.parquet", max_quarantined_fraction=0.5)
    assert (counts.scenarios, counts.reasons) == (2, {"duplicate id": 1})


def test_a_missing_part_is_an_error(tmp_path: Path) -> None:
    """The message names the missing file."""
    with pytest.raises(DataError, match=r"has no finance/dev \(turn/finance/dev\.tsv\)\. There is nothing"):
        list(read_multidogo(tmp_path, domains=("finance",), parts=("dev",)))


def test_every_published_conversation_is_a_scenario_or_quarantined(
    published: Callable[[str], Path], tmp_path: Path
) -> None:
    """5599 conversations: software 1653 + 236, finance 1684 + 240, fastfood 1563 + 223; 30 have an empty turn."""
    source = MultiDoGOSource(kind="multidogo", path=str(published("multidogo")))
    counts = ingest((source,), tmp_path / "s.parquet", tmp_path / "q.parquet", max_quarantined_fraction=0.05)
    assert (counts.records, counts.scenarios, counts.quarantined) == (5599, 5569, 30)
    assert counts.reasons == {"user_responses: user turn N is empty": 30}


def test_published_domains_are_mapped(published: Callable[[str], Path]) -> None:
    """Software is technical support, fastfood is sales, finance is customer service."""
    conversations = read_multidogo(published("multidogo"), domains=("software", "finance", "fastfood"), parts=("dev",))
    assert Counter(record.data["domain"] for record in conversations if record.data) == {
        "technical_support": 236,
        "customer_service": 240,
        "sales": 223,
    }
