"""Serving log as scenarios: the user's turns, the conversation's records or calls, and its expected outcome."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

from grpo.artifacts import local_path
from grpo.config.chats import LoggedUsers
from grpo.config.scenarios import ServedSource
from grpo.config.served_log import ServedLogSettings
from grpo.data_errors import problem_text, try_call
from grpo.log.corrections import corrections
from grpo.log.folder import ServedLog
from grpo.log.join import Joined, ServedConversation, join, scenario_id
from grpo.scenario import Expected, Scenario
from grpo.scenarios.logged_chat import conversation_fields
from grpo.scenarios.quarantine import QuarantineReason, reason_from_error, reason_from_problem
from grpo.scenarios.records import SourceRecord

SOURCE = "served"
"""`metadata.source` of these scenarios."""
_NO_CONVERSATION = "not a conversation"
ServedT = TypeVar("ServedT", bound=ServedLogSettings)


def join_served(source: ServedLogSettings) -> Joined:
    """Join the conversations of the log, or of the snapshot that the settings name."""
    return join(ServedLog(local_path(source.path)).read(source.segments))


def served_digest(source: ServedLogSettings) -> str:
    """Digest of the log as it is now, or of the snapshot that the settings name."""
    log = ServedLog(local_path(source.path))
    return log.digest(log.snapshot() if source.segments is None else source.segments)


def served_snapshot(source: ServedT) -> ServedT:
    """Settings that name the entries that the log has now, unless they name a snapshot already."""
    if source.segments is not None:
        return source
    return source.model_copy(update={"segments": ServedLog(local_path(source.path)).snapshot()})


def served_records(joined: Joined, source: ServedSource) -> Iterator[SourceRecord]:
    """Records of a log, one per conversation, then the lines that are not records of the log."""
    for number, conversation in enumerate(joined.conversations, start=1):
        data = try_call(partial(_fields, conversation, source.users))
        problem = problem_text(data, _NO_CONVERSATION) if isinstance(data, Exception) else None
        fields = None if isinstance(data, Exception) else data
        yield SourceRecord(source=served_place(source), line=number, data=fields, problem=problem)
    folder = local_path(source.path)
    for entry in joined.problems:
        yield SourceRecord(source=str(folder / entry.place), line=entry.line, data=None, problem=entry.problem)


def served_scenario(conversation: ServedConversation, users: LoggedUsers) -> Scenario | QuarantineReason:
    """Scenario of a conversation, or the reason why it is not a scenario.

    The policy's replies are not references, but the text of a corrected reply is one, unless feedback gave others. Tool
    calls and their results become a replay, unless feedback gave the conversation's records. A call at the end is left
    out, because the client did not answer it.
    """
    fields = try_call(partial(_fields, conversation, users))
    if isinstance(fields, Exception):
        return reason_from_problem(problem_text(fields, _NO_CONVERSATION))
    scenario = try_call(lambda: Scenario.model_validate(fields))
    return reason_from_error(scenario) if isinstance(scenario, Exception) else scenario


def served_place(source: ServedSource) -> str:
    """Name of a serving log in the places of its conversations."""
    return f"{source.path} (served)"


def _fields(conversation: ServedConversation, users: LoggedUsers) -> dict[str, Any]:
    messages, judgement = conversation.messages, conversation.judgement
    if messages[-1].tool_calls:
        messages = messages[:-1]
    return {
        "id": scenario_id(conversation.id),
        "topic": conversation.category,
        **conversation_fields(messages, conversation.tools, users=users),
        "domain": conversation.domain,
        **({"world": dict(judgement.world)} if judgement.world else {}),
        "expected": _expected(conversation).model_dump(),
        "metadata": {
            "category": conversation.category,
            "source": SOURCE,
            "licence": conversation.licence,
            "consent": conversation.consent,
        },
    }


def _expected(conversation: ServedConversation) -> Expected:
    """Outcome that feedback gave, with the corrected replies as references if it gave none."""
    expected = conversation.judgement.expected or Expected()
    corrected = tuple(filter(None, (correction.corrected.content for correction in corrections([conversation]))))
    return expected if expected.responses else expected.model_copy(update={"responses": corrected})
