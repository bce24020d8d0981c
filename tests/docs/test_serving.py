"""docs/serving.md: its commands and programs run, and its tables agree with the server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from grpo.config.serving import CallerLimits
from grpo.log.folder import ServedLog
from grpo.log.join import join
from grpo.log.records import Feedback
from grpo.serving.access.callers import SCOPES
from grpo.serving.requests.answered_turns import Joined
from grpo.serving.requests.feedback import FeedbackRequest
from grpo_cli.app import app
from tests.command_lines import commands_of
from tests.grpo.serving.chat_servers import ChatServer, chat_server, clerk
from tests.places import ROOT

PAGE = ROOT / "docs" / "serving.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_commands_on_keys_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a new home; at the end three of four keys are there."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    lines = [line for line in commands_of(PAGE) if line.arguments[0] == "keys" and not line.mentioned]
    assert [line.arguments[1] for line in lines] == ["create", "create", "create", "create", "list", "revoke"]
    for line in lines:
        result = CliRunner().invoke(app, list(line.arguments))
        assert result.exit_code == 0, f"{line}: {result.output}"
    listed = CliRunner().invoke(app, ["keys", "list"]).stdout
    assert re.findall(r"^(\S+): scopes (.+?);", listed, re.MULTILINE) == [
        ("me", "chat, feedback"),
        ("operator", "admin"),
        ("shop", "chat, feedback"),
    ]


def _first_cells(heading: str) -> list[list[str]]:
    """Quoted words of the cells of a table's rows."""
    table = TEXT.split(f"\n| {heading} |", 1)[1].split("\n\n", 1)[0]
    return [re.findall(r"`([^`]+)`", "|".join(row.split("|")[1:3])) for row in table.splitlines()[2:]]


def test_the_tables_name_scopes_limits_and_codes_of_the_server():
    """All scopes, all limits and all codes, and no others."""
    assert [row[0] for row in _first_cells("scope")] == list(SCOPES)
    options = [cell for row in _first_cells("limit") for cell in row]
    assert options == [f"--{name.replace('_', '-')}" for name in CallerLimits.model_fields]
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "grpo" / "serving").rglob("*.py"))
    named = {cell for row in _first_cells("status") for cell in row if cell != "messages[0].role"}
    assert [name for name in named if f'"{name}"' not in code] == []
    assert {*re.findall(r'code ?= ?"(\w+)"', code)} - named == {"none"}  # a label of the metrics


def test_the_tables_name_every_way_to_join_a_conversation_and_every_field_of_feedback():
    """No other ones, except for `conversation_id`, which the sentence before the table has."""
    table = TEXT.split("\n| the request has |", 1)[1].split("\n\n", 1)[0]
    assert {re.findall(r"`([^`]+)`", row)[-1] for row in table.splitlines()[2:]} == {*get_args(Joined)}
    table = TEXT.split("\n| field of feedback | meaning |", 1)[1].split("\n\n", 1)[0]
    fields = {name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert fields == {*FeedbackRequest.model_fields} - {"conversation_id"}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    """A server of the model that the page names."""
    version = replace(clerk(), model="support-desk", version="support-desk/1")
    with chat_server(tmp_path_factory.mktemp("desk"), lambda current: None if current else version) as server:
        yield server


def _run(desk: ChatServer, *command: str, name: str = "me", scopes: tuple[str, ...] = ("chat", "feedback")) -> str:
    """Output of a program with the environment variables that the page's first commands set."""
    key = desk.client(name, scopes).api_key
    environment = {**os.environ, "OPENAI_BASE_URL": f"{desk.url}/v1", "OPENAI_API_KEY": key}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_with_openais_client_talks_twice_and_rates(desk: ChatServer):
    """Two turns of one conversation and the feedback on the second are in the log."""
    (program,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    before = {turn.id for turn in desk.turns()}
    _run(desk, sys.executable, "-c", program)
    first, second = (turn for turn in desk.turns() if turn.id not in before)
    assert second.parent == first.id
    records = list(ServedLog(desk.folder / "log").read())
    (feedback,) = (record for record in records if isinstance(record, Feedback))
    assert (feedback.conversation_id, feedback.turn_id) == (first.conversation_id, second.id)
    assert (feedback.rating, feedback.comment) == (1, "quick")


def test_the_command_with_curl_streams_a_reply(desk: ChatServer):
    """Events up to the last one."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command, _ = re.findall(r"```bash\n(curl .*?)```", TEXT, re.DOTALL)
    events = [line for line in _run(desk, "bash", "-c", command).splitlines() if line]
    assert all(line.startswith("data: ") for line in events)
    assert events[-1] == "data: [DONE]"


def test_the_command_with_curl_logs_a_conversation_of_another_server(desk: ChatServer):
    """The log has it under the id of the answer, with its rating."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    _, command = re.findall(r"```bash\n(curl .*?)```", TEXT, re.DOTALL)
    answer = json.loads(_run(desk, "bash", "-c", command, name="exporter", scopes=("log",)))
    conversations = {item.id: item for item in join(ServedLog(desk.folder / "log").read()).conversations}
    logged = conversations[answer["conversation_id"]]
    assert [message.content for message in logged.messages] == ["Where is order 17?", "Sent."]
    assert (logged.judgement.rating, logged.consent) == (1.0, "training")
