"""docs/serving.md: its commands run in their order, and the codes of its tables are those of the server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo.serving.callers import SCOPES, CallerLimits
from grpo_flows.cli.app import app
from tests.command_lines import commands_of
from tests.places import ROOT

PAGE = ROOT / "docs" / "serving.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_commands_on_keys_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a new home; at the end two of three keys are there."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    lines = [line for line in commands_of(PAGE) if line.arguments[0] == "keys" and not line.mentioned]
    assert [line.arguments[1] for line in lines] == ["create", "create", "create", "list", "revoke"]
    for line in lines:
        result = CliRunner().invoke(app, list(line.arguments))
        assert result.exit_code == 0, f"{line}: {result.output}"
    listed = CliRunner().invoke(app, ["keys", "list"]).stdout
    assert re.findall(r"^(\S+): scopes (.+?);", listed, re.MULTILINE) == [
        ("operator", "admin"),
        ("shop", "chat, feedback"),
    ]


def _first_cells(heading: str) -> list[list[str]]:
    """Quoted words of the cells of a table's rows."""
    table = TEXT.split(f"\n| {heading} |", 1)[1].split("\n\n", 1)[0]
    return [re.findall(r"`([^`]+)`", "|".join(row.split("|")[1:3])) for row in table.splitlines()[2:]]


def test_the_tables_name_scopes_limits_and_codes_of_the_server():
    """All scopes, all limits, and no code that the server does not have."""
    assert [row[0] for row in _first_cells("scope")] == list(SCOPES)
    options = [cell for row in _first_cells("limit") for cell in row]
    assert options == [f"--{name.replace('_', '-')}" for name in CallerLimits.model_fields]
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "grpo" / "serving").glob("*.py"))
    named = {cell for row in _first_cells("status") for cell in row if cell != "messages.0.role"}
    assert len(named) == 18
    assert [name for name in named if f'"{name}"' not in code] == []
