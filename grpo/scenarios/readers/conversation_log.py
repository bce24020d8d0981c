"""Conversation log as scenarios: the user's turns are replayed, and the policy answers them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo.data_errors import error_text, try_call
from grpo.log.conversation import LoggedConversation
from grpo.scenarios.conversation_log import ConversationLog, LogEntry
from grpo.scenarios.logged_chat import user_fields
from grpo.scenarios.records import SourceRecord

SOURCE = "conversation_log"
"""`metadata.source` of these scenarios."""


def read_conversation_log(folder: Path, files: Sequence[str] | None = None) -> Iterator[SourceRecord]:
    """Read the log, or only these files of it, one record per conversation.

        user "Hi", assistant "Yes?", tool …, user "My order 17"    →    user_responses ("Hi", "My order 17")

    The policy's replies are left out, because they are not reference replies. If a row is not a conversation, or the
    rest of a file is damaged, there is a record with a problem.
    """
    for entry in ConversationLog(folder).read(files):
        yield _record(entry)


def _record(entry: LogEntry) -> SourceRecord:
    """The conversation as a record. It has a problem if the row was not read, or if it has no user turn."""
    conversation, problem, data = entry.conversation, entry.problem, None
    if conversation is not None:
        fields = try_call(lambda: _fields(conversation))
        if isinstance(fields, Exception):
            problem = error_text(fields)
        else:
            data = fields
    return SourceRecord(source=entry.source, line=entry.line, data=data, problem=problem)


def _fields(conversation: LoggedConversation) -> dict[str, Any]:
    lines = [
        (message.role, message.content) for message in conversation.messages if message.role in ("user", "assistant")
    ]
    return {
        "id": f"conversation-{conversation.id}",
        "topic": conversation.category,
        "domain": conversation.domain,
        **user_fields(lines, users="script"),
        "tools": conversation.tools,
        "world": conversation.world,
        "expected": conversation.expected.model_dump(),
        "metadata": {
            "category": conversation.category,
            "source": SOURCE,
            "licence": conversation.licence,
            "consent": conversation.consent,
        },
    }
