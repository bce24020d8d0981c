from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from grpo.config.scenarios import ConversationLogSource
from grpo.messages import Message
from grpo.retraining.live import production_metrics
from grpo.scenarios.conversation_log import ConversationLog, LoggedConversation

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_only_conversations_since_the_last_judgement_are_worth_a_look(tmp_path: Path):
    """Four an hour apart of this version, one of another; two came after 13:30."""
    said = (Message(role="user", content="Hello."),)
    log = [
        LoggedConversation(
            id=f"c{k}", time=NOON + timedelta(hours=k), model="desk/1", messages=said, reward=k / 10, rating=None
        )
        for k in range(4)
    ]
    log.append(LoggedConversation(id="other", time=NOON, model="desk/2", messages=said, reward=1.0))
    ConversationLog(tmp_path).write(log)
    sources = [ConversationLogSource(kind="conversation_log", path=str(tmp_path))]
    assert production_metrics(sources, "desk/1") == {"reward": [0.0, 0.1, 0.2, 0.3], "rating": []}
    assert production_metrics(sources, "desk/1", NOON + timedelta(hours=1.5)) == {"reward": [0.2, 0.3], "rating": []}


def test_a_damaged_file_or_reward_leaves_the_others_to_count(tmp_path: Path):
    """One file has lost its end, one reward is NaN; the third conversation is worth .5."""
    said = (Message(role="user", content="Hello."),)
    log = ConversationLog(tmp_path)
    written = [
        LoggedConversation(id=f"c{k}", time=NOON + timedelta(days=k), model="desk/1", messages=said, reward=0.5)
        for k in range(3)
    ]
    lost, changed, _ = log.write(written)
    lost.write_bytes(lost.read_bytes()[:-30])
    table = pq.read_table(changed)
    cells = pa.array([float("nan")])
    pq.write_table(table.set_column(table.schema.get_field_index("reward"), "reward", cells), changed)
    sources = [ConversationLogSource(kind="conversation_log", path=str(tmp_path))]
    assert production_metrics(sources, "desk/1")["reward"] == [0.5]
