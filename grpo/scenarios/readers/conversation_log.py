"""Conversation log as scenarios: the user's turns are replayed, and the policy answers them anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo.scenarios.conversation_log import ConversationLog, LoggedConversation
from grpo.scenarios.readers.speaker_turns import user_turns_and_replies
from grpo.scenarios.records import SourceRecord

SOURCE = "conversation_log"
"""`metadata.source` of these scenarios."""


def read_conversation_log(folder: Path, files: Sequence[str] | None = None) -> Iterator[SourceRecord]:
    """Read the log, or these files of it, one record a conversation.

        user "Hi", assistant "Yes?", tool …, user "My order 17"    →    user_responses ("Hi", "My order 17")

    The policy's replies are left out, as they are not reference replies. A row that is not a conversation, and the
    damaged rest of a file, become a record with a problem.
    """
    for entry in ConversationLog(folder).read(files):
        data = None if entry.conversation is None else _fields(entry.conversation)
        yield SourceRecord(source=entry.source, line=entry.line, data=data, problem=entry.problem)


def _fields(conversation: LoggedConversation) -> dict[str, Any]:
    lines = [
        (message.role, message.content) for message in conversation.messages if message.role in ("user", "assistant")
    ]
    return {
        "id": f"conversation-{conversation.id}",
        "topic": conversation.category,
        "domain": conversation.domain,
        "user_responses": user_turns_and_replies(lines, "user")[0],
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
