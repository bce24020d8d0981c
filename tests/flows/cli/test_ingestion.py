from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from grpo.config.scenarios import ScenarioSettings
from grpo.scenarios.sources import read_records
from grpo_cli.app import app
from grpo_cli.ingestion import one_line
from tests.doubles import changed, short_run

CHAT = {"messages": [{"role": "user", "content": "Hi there."}, {"role": "assistant", "content": "Hello."}]}


def ingest(folder: Path, records: list[Any], *arguments: str) -> tuple[int, str]:
    """Exit code and output of the command on these logged chats."""
    path = folder / "chats.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    source = {"kind": "openai_messages", "path": str(path), "users": "goal"}
    config = changed(short_run(folder), scenarios={"sources": [source], "limit": None, "validation_fraction": 0.5})
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    result = CliRunner().invoke(
        app, ["ingest", str(folder / "run.yaml"), "--folder", str(folder / "tables"), *arguments]
    )
    return result.exit_code, f"{result.output}{result.exception or ''}"


def chats(count: int) -> list[Any]:
    """Chats whose texts have nothing in common."""
    texts = [hashlib.sha256(f"{k}".encode()).hexdigest() for k in range(count)]
    return [{"messages": [{"role": "user", "content": f"{text[:20]} {text[20:40]} {text[40:]}"}]} for text in texts]


@pytest.mark.filterwarnings("ignore")
def test_ingestion_shows_goals_five_examples_and_five_quarantined_records(tmp_path: Path):
    """Of 20 chats and 6 broken records; goals are named as such."""
    broken = [{"messages": [{"role": f"bot {k}"}]} for k in range(6)]
    code, output = ingest(tmp_path, [*chats(20), *broken], "--set", "scenarios.max_quarantined_fraction=0.5")
    assert code == 0, output
    assert (
        "26 records, 20 scenarios (0 scripted, 20 with a goal; 0 with tools, 0 with a replay), 6 quarantined" in output
    )
    assert output.count("goal: Reason: ") == 5
    assert "first of 6 quarantined" in output
    assert output.count("unknown role: bot") == 5
    assert "chats.jsonl:21  unknown role: bot 0 in message 0" in output


@pytest.mark.filterwarnings("ignore")
def test_a_refused_ingestion_shows_its_quarantine(tmp_path: Path):
    """Half of the records are broken: the run would stop."""
    code, output = ingest(tmp_path, [CHAT, {"messages": 7}])
    assert code != 0
    assert "chats.jsonl:2  messages are not a list: int" in output


def test_text_of_others_is_one_line_that_a_terminal_does_not_obey():
    """Control characters are escaped, white space is folded, and long text is cut."""
    assert one_line("a\n\tb\x1b[31m") == "a b\\x1b[31m"
    assert one_line("x" * 300, 10) == "x" * 10 + "…"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("chats.jsonl", json.dumps(CHAT), ["kind: openai_messages"]),
        ("dump.json", '[{"conversations": [{"from": "human", "value": "Hi there."}]}]', ["kind: sharegpt"]),
        ("alpaca.json", '[{"instruction": "Hi there.", "input": "", "output": "Hello."}]', ["kind: alpaca"]),
        ("pairs.jsonl", '{"prompt": "Hi there.", "completion": "Hello."}', ["kind: prompt_completion"]),
        ("own.jsonl", '{"id": "a", "user_responses": ["Hi there."]}', ["kind: jsonl"]),
        (
            "tickets.csv",
            "ticket;question;topic\n1;Hi there.;x\n",
            ["kind: csv", "user_responses: question", "id: ticket"],
        ),
        (
            "personas.csv",
            "id,role,question,text,answer\n1,teacher,Hi there.,Lesson 1,Hello.\n",
            ["kind: csv", "user_responses: question", "expected.responses: answer"],
        ),
        (
            "desk.csv",
            "Ticket ID,Author,Created at,Body\n1,end-user,2026-11-20 09:00,Hi there.\n1,agent,2026-11-20 09:01,Yes?\n",
            ["kind: csv", "group_by: Ticket ID", "speaker: Author", "text: Body", "order: Created at"],
        ),
        (
            "account.json",
            '[{"chat_messages": [{"sender": "human", "text": "Hi there."}, {"sender": "bot", "text": "Hello."}]}]',
            ["kind: openai_messages", "column: chat_messages", "role: sender", "content: text"],
        ),
        (
            "dolly.jsonl",
            '{"instruction": "When?", "context": "Hi there.", "response": "Now."}',
            ["kind: alpaca", "input: context", "output: response"],
        ),
        (
            "swift.jsonl",
            '{"query": "Bye.", "response": "Ciao.", "history": [["Hi there.", "Hello."]], "system": "Be kind."}',
            ["kind: alpaca", "instruction: query", "output: response"],
        ),
        ("gemini.jsonl", '{"contents": [{"role": "user", "parts": [{"text": "Hi there."}]}]}', ["openai_messages"]),
        ("trl.jsonl", '{"prompt": [{"role": "user", "content": "Hi there."}]}', ["kind: prompt_completion"]),
    ],
)
def test_a_file_without_a_config_is_guessed(tmp_path: Path, name: str, content: str, settings: list[str]):
    """The settings to paste read the file: they are loaded from what is printed."""
    path = tmp_path / name
    path.write_text(content)
    result = CliRunner().invoke(app, ["ingest", str(path), "--folder", str(tmp_path / "tables")])
    assert result.exit_code == 0, f"{result.output}{result.exception}"
    assert "Hi there." in result.output
    printed = result.output.partition("settings for a config, which read these scenarios:\n")[2]
    assert [line for line in settings if line not in printed] == []
    (source,) = ScenarioSettings.model_validate(yaml.safe_load(printed)["scenarios"]).sources
    assert [record.problem for record in read_records(source)] == [None]


@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_parts_is_guessed_with_a_source_for_each_file(tmp_path: Path):
    """Exports come in parts: JSON lines and Parquet in a folder and below it. Other files are left."""
    parts = tmp_path / "export"
    (parts / "later").mkdir(parents=True)
    for number in range(2):
        chat = [{"role": "user", "content": f"Hi {number}."}, {"role": "assistant", "content": "Hello."}]
        (parts / f"part-{number}.jsonl").write_text(json.dumps({"messages": chat}))
    pq.write_table(pa.table({"question": ["Where?"], "answer": ["Here."]}), parts / "later" / "part-2.parquet")
    (parts / "README.md").write_text("An export.")
    result = CliRunner().invoke(app, ["ingest", str(parts), "--folder", str(tmp_path / "tables")])
    assert result.exit_code == 0, f"{result.output}{result.exception}"
    assert "3 records: 3 scenarios, 0 quarantined" in result.output
    printed = result.output.partition("settings for a config, which read these scenarios:\n")[2]
    sources = ScenarioSettings.model_validate(yaml.safe_load(printed)["scenarios"]).sources
    assert [record.problem for source in sources for record in read_records(source)] == [None, None, None]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("acme/chats", "a config reads it with `kind: hub` and `id: acme/chats` under scenarios.sources"),
        (".", "is a folder without a file that ends in .csv, .tsv"),
    ],
)
def test_what_a_guess_does_not_read_has_a_setting_or_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str
):
    """The id of a data set on the hub, and a folder without data."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["ingest", name, "--folder", str(tmp_path.parent / "tables")])
    assert result.exit_code != 0
    assert sentence in f"{result.output}{result.exception}"


@pytest.mark.filterwarnings("ignore")
def test_a_guess_says_what_it_could_not_read(tmp_path: Path):
    """The line and the reason of each broken record; a file of unknown columns is one line."""
    path = tmp_path / "chats.jsonl"
    path.write_text(f'{json.dumps(CHAT)}\n{{"messages": 7}}\n')
    output = CliRunner().invoke(app, ["ingest", str(path), "--folder", str(tmp_path / "tables")]).output
    assert "chats.jsonl:2  messages are not a list: int" in output
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    result = CliRunner().invoke(app, ["ingest", str(tmp_path / "x.csv")])
    assert "x.csv has a, b, and none of these keys or columns is known" in f"{result.output}{result.exception}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.csv", b"id;question\n1;Caf\xe9?\n", "not UTF-8: column question. Set the source's encoding"),
        ("x.xlsx", b"PK", "Save a workbook as CSV"),
        ("x.jsonl", b'{"role": "assistant", "text": "Hello.", "tree": "1"}', "Name that column in messages.group_by"),
        ("x.jsonl", b'{"prompt": {"text": "Hi", "replies": []}}', "prompt is not a text: "),
        ("x.jsonl", b'{"chat_history": [{"role": "USER", "message": "Hi"}], "question": "Bye"}', "none of these keys"),
        (
            "x.jsonl",
            b'{"a": [{"role": "user", "text": "Hi"}, {"role": "bot", "text": "A"}], '
            b'"b": [{"role": "user", "text": "Hi"}, {"role": "bot", "text": "B"}]}',
            "has a, b, and none of these keys",
        ),
        (
            "x.json",
            b'{"messages": [{"sender": "User", "text": "Hi", "children": [{"sender": "Bot", "text": "A"}]}]}',
            "no role: message 0 has sender, text, children",
        ),
    ],
)
def test_a_guess_never_takes_a_part_for_the_whole(tmp_path: Path, name: str, content: bytes, sentence: str):
    """A single message, an earlier part of a chat, a question without its reply, or the root of a tree of answers."""
    (tmp_path / name).write_bytes(content)
    result = CliRunner().invoke(app, ["ingest", str(tmp_path / name), "--folder", str(tmp_path / "tables")])
    assert result.exit_code != 0
    assert sentence in f"{result.output}{result.exception}"


@pytest.mark.filterwarnings("ignore")
def test_columns_that_a_guess_does_not_read_are_named(tmp_path: Path):
    """A note of the staff would be read as a reply, so a person has to see that its column is not read."""
    rows = [
        {"session_id": "s", "from": "user", "content": "Hi"},
        {"session_id": "s", "from": "agent", "content": "Yes"},
    ]
    lines = [json.dumps({**row, "type": "text", "timestamp": number}) for number, row in enumerate(rows)]
    (tmp_path / "desk.jsonl").write_text("\n".join(lines))
    result = CliRunner().invoke(app, ["ingest", str(tmp_path / "desk.jsonl"), "--folder", str(tmp_path / "tables")])
    assert "columns that these settings do not read: type\n" in result.output
