"""The tables that `python -m tests.docs.tables` writes are on their pages, and the samples of their rows are true."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from grpo.config.chats import LoggedUsers
from grpo.config.scenarios import ChatSource, HelpDesk, HelpDeskSource
from grpo.scenarios.guess import guess_source
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records
from tests.benchmarks.page import Table
from tests.docs.log_rows import DESKS, FIELDS, GUESSES, LOG, RECORDS, GuessRow, RecordRow, Sample
from tests.docs.tables import PAGES, page_text, rewritten
from tests.grpo.scenarios.chat_samples import ASKED, DONE, FORMATS, Format
from tests.grpo.scenarios.program_samples import PROGRAM_FILES, ProgramFile
from tests.places import ROOT


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_tables_of_the_code(page: str):
    """`python -m tests.docs.tables` would change nothing."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text == page_text(page), "run `python -m tests.docs.tables`"


def test_a_table_replaces_the_rows_below_its_first_line():
    """The text around them stays, and a page without the table is an error."""
    table = Table(head=("a", "b"), rows=(("1", "2"),))
    page = "x\n\n| a | b |\n|---|---|\n| 3 | 4 |\n| 5 | 6 |\n\ny\n"
    assert rewritten(page, table) == "x\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\ny\n"
    with pytest.raises(ValueError, match=r"has 0 tables that begin with \| a \| b \|"):
        rewritten("x\n", table)


def _read(tmp_path: Path, record: Any, users: LoggedUsers = "script") -> SourceRecord:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    (read,) = read_records(ChatSource(kind="openai_messages", path=str(path), users=users))
    return read


def _at(value: Any, place: str) -> Any:
    """Value at a place with dots, in objects and lists. None if there is none."""
    for key in place.split("."):
        if isinstance(value, list):
            value = value[int(key)] if int(key) < len(value) else None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def _words(value: Any) -> Iterator[str]:
    """Keys of a record, and its texts of one word."""
    if isinstance(value, str) and value.startswith(("{", "[")):
        value = json.loads(value)
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _words(item)
    elif isinstance(value, list):
        for item in value:
            yield from _words(item)
    elif isinstance(value, (str, int)):
        yield str(value)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_format_is_known_by_the_words_of_its_row(tmp_path: Path, form: Format):
    """Each word in quotes is in a chat of the format, and each chat is read with its question and its reply."""
    known = {*_words([*form.chats, *form.quarantined])}
    known |= {re.sub(r"^tool-look_up$", "tool-NAME", word) for word in known}
    assert {*re.findall(r"`([^`]+)`", form.known_by)} - known == set()
    for chat in form.chats:
        record = _read(tmp_path, chat)
        assert record.data is not None, record.problem
        assert record.data["user_responses"][0] == ASKED
        assert record.data["expected"]["responses"][0].endswith(DONE)
    for chat in form.quarantined:
        assert _read(tmp_path, chat).problem is not None


@pytest.mark.parametrize("program", PROGRAM_FILES, ids=lambda program: program.name)
def test_a_program_is_known_by_the_words_of_its_row(program: ProgramFile):
    """Each word in quotes is in its file, or is another name of what is in its file."""
    known = {*_words(program.content), "data", "data_visible"}
    assert {*re.findall(r"`([^`]+)`", f"{program.known_by} {program.reads}")} - known == set()


def test_each_help_desk_has_a_row():
    """In the order of the settings."""
    assert tuple(DESKS) == get_args(HelpDesk)


@pytest.mark.parametrize("kind", DESKS)
def test_the_words_of_a_help_desks_row_are_in_its_tickets(tmp_path: Path, kind: HelpDesk):
    """And the user's two questions are read from the author that the row names."""
    record, user, tickets = DESKS[kind]
    known = {*_words([*tickets])} | {"contact", "visitor", "messages"}
    words = [word for word in re.findall(r"`([^`]+)`", f"{record} {user}") if word not in known]
    assert words == []
    for ticket in tickets:
        path = tmp_path / "a.json"
        path.write_text(json.dumps(ticket), encoding="utf-8")
        (read,) = read_records(HelpDeskSource(kind=kind, path=str(path)))
        assert read.data is not None, read.problem
        assert len(read.data["user_responses"]) == 2


@pytest.mark.parametrize("author", ["user", "lead", "contact", "visitor"])
def test_each_author_of_intercoms_row_is_the_user(tmp_path: Path, author: str):
    """An admin is not."""
    ticket = json.loads(json.dumps(DESKS["intercom"][2][0]).replace('"lead"', f'"{author}"'))
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ticket), encoding="utf-8")
    (read,) = read_records(HelpDeskSource(kind="intercom", path=str(path)))
    assert read.data is not None, read.problem
    assert len(read.data["user_responses"]) == 2
    assert f"`{author}`" in DESKS["intercom"][1]


@pytest.mark.parametrize(
    ("row", "sample"), [pytest.param(row, sample, id=row.part[:40]) for row in RECORDS for sample in row.samples]
)
def test_a_part_of_a_record_becomes_what_its_row_says(tmp_path: Path, row: RecordRow, sample: Sample):
    """Fields of the scenario, a reason of the quarantine, or a part that is left out and counted."""
    record = _read(tmp_path, sample.record)
    if sample.quarantined is not None:
        assert (record.problem or "").startswith(sample.quarantined)
        assert "quarantined" in row.becomes
        return
    assert record.data is not None, record.problem
    for place, value in (sample.fields or {}).items():
        assert _at(record.data, place) == value
    assert sample.left_out is None or any(reason.startswith(sample.left_out) for reason in record.ignored)


@pytest.mark.parametrize("row", GUESSES, ids=lambda row: row.guess)
def test_a_guess_is_made_under_its_condition(tmp_path: Path, row: GuessRow):
    """The settings of the sample have what the row says."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in row.rows), encoding="utf-8")
    settings = guess_source(path).model_dump(mode="json")
    assert {place: _at(settings, place) for place in row.settings} == row.settings


@pytest.mark.parametrize(("part", "field", "place", "value"), FIELDS, ids=lambda value: str(value)[:30])
def test_a_part_of_a_log_becomes_the_field_of_its_row(tmp_path: Path, part: str, field: str, place: str, value: Any):
    """In one chat with all parts."""
    record = _read(tmp_path, LOG, "goal" if "users: goal" in part else "script")
    assert record.data is not None, record.problem
    assert _at(record.data, place) == value
    assert place.startswith(field.split("`")[1])
