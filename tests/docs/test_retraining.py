"""docs/retraining.md: its programs append conversations to a log."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.config.scenarios import ServedSource
from grpo.errors import DataError
from grpo.log.folder import ServedLog
from grpo.log.join import ServedConversation, join
from grpo.scenarios.sources import read_records
from tests.places import ROOT

APPENDED, CONVERTED = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "retraining.md").read_text(encoding="utf-8"), re.DOTALL
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder of the programs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def logged(folder: Path) -> list[ServedConversation]:
    return list(join(ServedLog(folder / "runs" / "served").read()).conversations)


def test_the_program_appends_a_conversation(folder: Path):
    """Its id is the one that the program gets."""
    names: dict[str, Any] = {}
    exec(APPENDED, names)
    [conversation] = logged(folder)
    assert conversation.id == names["ids"].conversation_id
    assert (conversation.reward, conversation.consent, conversation.model) == (1.0, "training", "support-desk/3")


def test_tables_of_conversations_are_refused_and_converted(folder: Path):
    """With calls, tools, records and outcome; read as a log, they would look like an empty one."""
    call = json.dumps([["look_up", {"order": "17"}]])
    spoken = [
        {"role": "user", "content": "Where is order 17?", "tool_calls": "[]"},
        {"role": "assistant", "content": "", "tool_calls": call},
        {"role": "tool", "content": "lost", "tool_calls": "[]"},
        {"role": "assistant", "content": "It is lost.", "tool_calls": "[]"},
    ]
    row = {
        "id": "a", "time": datetime(2021, 11, 20, 9, tzinfo=UTC), "model": "desk/1", "messages": spoken,
        "reward": 0.25, "rating": 0.0, "domain": "sales", "category": "missing",
        "tools": json.dumps([{"name": "look_up"}]), "world": json.dumps({"orders": {"17": "lost"}}),
        "expected": json.dumps({"facts": ["lost"]}), "licence": "own", "consent": "training",
    }  # fmt: skip
    table = folder / "conversations" / "2021-11-20" / "3fa1.parquet"
    table.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([row]), table)
    with pytest.raises(DataError, match=r"conversations has tables of conversations in a format that is not read"):
        list(read_records(ServedSource(kind="served", path=str(folder / "conversations"))))
    exec(CONVERTED, {})
    [conversation] = logged(folder)
    assert [message.content for message in conversation.messages] == [part["content"] for part in spoken]
    assert conversation.messages[1].tool_calls[0].arguments == {"order": "17"}
    judgement = conversation.judgement
    assert (judgement.success, judgement.rating, judgement.world) == (False, 0.0, {"orders": {"17": "lost"}})
    assert judgement.expected is not None
    assert judgement.expected.facts == ("lost",)
    assert (conversation.category, conversation.domain, conversation.tools[0]["name"]) == (
        *("missing", "sales", "look_up"),
    )
