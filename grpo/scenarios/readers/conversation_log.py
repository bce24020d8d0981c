"""The conversation log as scenarios: the user says the same again, and the policy may answer better."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo.scenarios.conversation_log import ConversationLog, LoggedConversation
from grpo.scenarios.readers.record import SourceRecord
from grpo.scenarios.readers.speaker_turns import user_turns_and_replies

SOURCE = "conversation_log"
"""What `metadata.source` says of such a scenario."""


def read_conversation_log(folder: Path, files: Sequence[str] | None = None) -> Iterator[SourceRecord]:
    """Read the log, or these files of it, one record a conversation.

        user "Hi", assistant "Yes?", tool …, user "My order 17"    →    user_responses ("Hi", "My order 17")

    What the policy said is no reference for what should be said, and is left out. A row that is no conversation
    becomes a record with a problem, and so does what is damaged of a file.
    """
    for entry in ConversationLog(folder).read(files):
        data = None if entry.conversation is None else _fields(entry.conversation)
        yield SourceRecord(source=entry.source, line=entry.line, data=data, problem=entry.problem)


def _fields(conversation: LoggedConversation) -> dict[str, Any]:
    said = ((one.role, one.content) for one in conversation.messages if one.role in ("user", "assistant"))
    return {
        "id": f"conversation-{conversation.id}",
        "topic": conversation.category,
        "domain": conversation.domain,
        "user_responses": user_turns_and_replies(said, "user")[0],
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
