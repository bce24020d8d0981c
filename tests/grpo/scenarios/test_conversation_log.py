from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.config.scenarios import ConversationLogSource
from grpo.errors import DataError
from grpo.log.conversation import LoggedConversation
from grpo.messages import Message, ToolCall
from grpo.scenario import Expected, Scenario
from grpo.scenarios.conversation_log import SCHEMA, ConversationLog
from grpo.scenarios.sources import content_hash, read_records

SPOKEN = (
    Message(role="assistant", content="Hello!"),
    Message(role="user", content="My parcel is lost."),
    Message(role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": "17"}),)),
    Message(role="tool", content='{"state": "lost"}'),
    Message(role="assistant", content="Anything else?"),
    Message(role="user", content="No."),
)


def conversation(name: str = "a", day: int = 20, **changes: object) -> LoggedConversation:
    fields = {"id": name, "time": datetime(2026, 11, day, 9, tzinfo=UTC), "model": "desk/1", "messages": SPOKEN}
    return LoggedConversation.model_validate({**fields, **changes})


def source(folder: Path, files: tuple[str, ...] | None = None) -> ConversationLogSource:
    return ConversationLogSource(kind="conversation_log", path=str(folder), files=files)


def test_what_is_written_is_read_back(tmp_path: Path):
    """Messages with their calls, records, rewards and consent; a reward that was not computed stays None."""
    written = conversation(
        reward=0.25,
        world={"orders": {"17": {"state": "lost"}}},
        expected=Expected(calls=({"name": "refund", "arguments": {"order": "17"}},)),
        consent="training",
        licence="own",
    )
    log = ConversationLog(tmp_path)
    log.write([written])
    [entry] = log.read()
    assert entry.line == 1
    assert entry.conversation == written
    assert written.rating is None


def test_each_day_has_its_folder_and_the_same_conversations_make_the_same_files(tmp_path: Path):
    """Days are those of UTC; a writer that was killed and begins again doubles nothing."""
    log = ConversationLog(tmp_path)
    late = datetime.fromisoformat("2026-11-21T00:30:00+02:00")  # 22:30 of the 20th in UTC
    paths = log.write([conversation("b", day=21), conversation("a", day=20), conversation("c", time=late)])
    assert [path.parent.name for path in paths] == ["2026-11-20", "2026-11-21"]
    assert log.write([conversation("a", day=20), conversation("c", time=late), conversation("b", day=21)]) == paths
    assert len(log.files()) == 2


def test_a_file_that_was_left_half_written_is_not_read(tmp_path: Path):
    """A writer died before it renamed its file."""
    log = ConversationLog(tmp_path)
    [path] = log.write([conversation()])
    path.with_name("3f.part").write_bytes(path.read_bytes()[:40])
    assert len(list(log.read())) == 1


def test_a_conversation_becomes_a_scenario_whose_user_says_the_same(tmp_path: Path):
    """The user's turns from the first on; the policy's own replies are not references."""
    ConversationLog(tmp_path).write([conversation(category="missing", domain="customer_service", consent="training")])
    [record] = read_records(source(tmp_path))
    scenario = Scenario.model_validate(record.data)
    assert scenario.id == "conversation-a"
    assert scenario.user_responses == ("My parcel is lost.", "No.")
    assert scenario.expected == Expected()
    assert (scenario.metadata.source, scenario.metadata.consent) == ("conversation_log", "training")
    assert scenario.metadata.category == scenario.topic == "missing"


def test_a_row_that_is_not_a_conversation_is_a_record_with_a_problem(tmp_path: Path):
    """A rating of 5 is outside of 0 to 1; the next row is read."""
    log = ConversationLog(tmp_path)
    [path] = log.write([conversation("a"), conversation("b")])
    rows = pq.read_table(path).to_pylist()
    rows[0]["rating"] = 5.0
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
    first, second = read_records(source(tmp_path))
    assert first.problem is not None
    assert first.problem.startswith("not a conversation: rating")
    assert second.data is not None


def test_a_pinned_log_does_not_grow(tmp_path: Path):
    """Entries that are written while a retraining reads belong to the next one; the identity names the files."""
    log = ConversationLog(tmp_path)
    log.write([conversation("a")])
    pinned, everything = source(tmp_path, log.files()), source(tmp_path)
    before = content_hash([pinned]), content_hash([everything])
    log.write([conversation("b")])
    assert len(list(read_records(pinned))) == 1
    assert len(list(read_records(everything))) == 2
    assert content_hash([pinned]) == before[0]
    assert content_hash([everything]) != before[1]


def test_a_log_without_a_folder_is_empty(tmp_path: Path):
    """A missing folder holds no conversations; for any other source it would be an error."""
    assert list(read_records(source(tmp_path / "none"))) == []


def damaged(path: Path, position: int) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def rewrite(path: Path, **columns: list[object]) -> None:
    """Write these cells over those of a file of the log, without compression or dictionaries."""
    table = pq.read_table(path)
    for name, cells in columns.items():
        table = table.set_column(
            table.schema.get_field_index(name), SCHEMA.field(name), pa.array(cells, SCHEMA.field(name).type)
        )
    pq.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)


def test_a_file_of_another_schema_is_one_problem_and_the_others_are_read(tmp_path: Path):
    """It is named, with both versions."""
    ConversationLog(tmp_path).write([conversation("a", day=21)])
    (tmp_path / "2026-11-20").mkdir()
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "2026-11-20" / "x.parquet")
    damage, good = read_records(source(tmp_path))
    assert damage.problem is not None
    assert "x.parquet has conversation log version none, this code reads 1" in damage.problem
    assert good.data is not None


def test_a_row_whose_words_are_not_utf8_is_a_problem_and_the_next_is_read(tmp_path: Path):
    """One byte of a user's words is changed on disk."""
    [path] = ConversationLog(tmp_path).write([conversation("a"), conversation("b", category="unmistakable")])
    rewrite(path)
    damaged(path, path.read_bytes().index(b"unmistakable"))
    first, second = read_records(source(tmp_path))
    assert first.data is not None
    assert second.problem is not None
    assert second.problem.startswith("not a conversation: column cannot be decoded: category: UnicodeDecodeError")


def test_a_file_without_its_end_is_one_problem_and_the_others_are_read(tmp_path: Path):
    """The nightly retraining goes on with what there is."""
    log = ConversationLog(tmp_path)
    [lost], _ = log.write([conversation("a", day=20)]), log.write([conversation("b", day=21)])
    lost.write_bytes(lost.read_bytes()[:-30])
    damage, good = read_records(source(tmp_path))
    assert damage.problem is not None
    assert damage.problem.startswith(f"damaged file: {lost} is not a readable Parquet file")
    assert good.data is not None


def test_rows_behind_a_damaged_page_are_one_problem_that_counts_them(tmp_path: Path):
    """Three conversations in three row groups of one file; the pages of the second are overwritten."""
    log = ConversationLog(tmp_path)
    [path] = log.write([conversation(name) for name in "abc"])
    pq.write_table(pq.read_table(path), path, row_group_size=1)
    page = pq.read_metadata(path).row_group(1).column(0).dictionary_page_offset
    content = bytearray(path.read_bytes())
    content[page : page + 20] = bytes(20)
    path.write_bytes(content)
    first, damage = read_records(source(tmp_path))
    assert first.data is not None
    assert damage.line == 2
    assert damage.problem is not None
    assert "is damaged after row 1 of 3" in damage.problem


@pytest.mark.parametrize(
    ("column", "cell", "fault"),
    [
        ("world", "[" * 100_000, "recursion limit exceeded"),
        ("world", '{"price": NaN}', "expected value"),
        ("tools", "7", "tools: Input should be a valid tuple"),
        ("messages", [{"role": "user", "content": "Hi.", "tool_calls": "7"}], "TypeError"),
        ("messages", [{"role": "boss", "content": "Hi.", "tool_calls": None}], "role 'boss' is unknown"),
        ("reward", float("nan"), "reward: Input should be a finite number"),
    ],
)
def test_whatever_a_cell_holds_its_row_is_a_problem_and_the_next_is_read(
    tmp_path: Path, column: str, cell: object, fault: str
):
    """The reason names the fault."""
    [path] = ConversationLog(tmp_path).write([conversation("a"), conversation("b")])
    rewrite(path, **{column: [cell, pq.read_table(path).column(column)[1].as_py()]})
    first, second = read_records(source(tmp_path))
    assert first.problem is not None
    assert first.problem.startswith("not a conversation: ")
    assert fault in first.problem
    assert second.data is not None


def test_a_row_without_a_column_is_a_problem(tmp_path: Path):
    """Another writer left the messages out."""
    [path] = ConversationLog(tmp_path).write([conversation("a")])
    pq.write_table(pq.read_table(path).drop_columns(["messages"]), path)
    [record] = read_records(source(tmp_path))
    assert record.problem == "not a conversation: no 'messages'"


@pytest.mark.parametrize("changes", [{"world": {"n": float("nan")}}, {"expected": Expected(state={"n": float("inf")})}])
def test_nothing_is_written_that_could_not_be_read_back(tmp_path: Path, changes: dict[str, object]):
    """NaN is not JSON: the writer learns it, not the retraining."""
    with pytest.raises(DataError, match="conversation a cannot be stored as JSON"):
        ConversationLog(tmp_path).write([conversation(**changes)])


def test_a_pinned_file_that_is_gone_is_an_error(tmp_path: Path):
    """The plan of a retraining names it."""
    with pytest.raises(DataError, match=r"no file .*x\.parquet in the conversation log"):
        list(read_records(source(tmp_path, ("2026-11-20/x.parquet",))))
