"""Logged chats of a user, an agent and its tools, and the scenarios that they become.

    message of the log                       users: script                          users: goal
    system "You run the order desk."         context                                the same
    user "Where is order 7?"                 user_responses[0]                      goal, first line
    assistant look_up(order="7")             world.recorded[0], with its result     the same
    tool {"state": "lost"}
    assistant "It is lost."                  expected.responses[0]                  the same
    user "Then I want my money back."        user_responses[1]                      goal, fact that is told on request

The agent's greeting before the first user turn is part of the context. The environment `replay` replays the calls.
They are not `expected.calls`, because a log does not show that they were right. In a file to learn from, however, a
record that ends with a call shows the call to make, so that call becomes `expected.calls`.

Reasoning is not part of a reference reply. A turn of weight 0 is not a reference, because it must not be learned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import from_json

from grpo.config.chats import LoggedUsers
from grpo.data_errors import excerpt
from grpo.messages import Role, split_reasoning
from grpo.scenarios.readers.messages.speaker_turns import merge_speaker_turns, user_turns_and_replies
from grpo.scenarios.tool_schemas import infer_tool_schemas

MAX_MESSAGES = 2_000
"""Largest number of messages of a chat, and of tool calls of one message."""
_SHOWN = 80  # characters of a value in a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCall:
    """Tool call of a log."""

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None
    """Name by which its result refers to it. None if the format has results in the order of calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedMessage:
    """Message of a log. Developer messages are system messages."""

    role: Role
    content: str
    calls: tuple[LoggedCall, ...] = ()
    answers: str | None = None
    """Id of the call that a tool's message is the result of."""
    name: str | None = field(default=None, compare=False)
    """Name of the speaker, if several share a role."""
    weight: int = field(default=1, compare=False)
    """0 for a turn of the agent that must not be learned."""
    reasoning: str | None = field(default=None, compare=False)
    """Reasoning before the reply. Not compared, because another log of the same turn may lack it."""
    ignored: tuple[str, ...] = field(default=(), compare=False)
    """Fields that were not read, each with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedChat:
    """Messages in order, and the tools that the agent could call."""

    messages: tuple[LoggedMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tools of a scenario: `{"name", "description", "parameters"}`."""
    ends_with_expected_call: bool = False
    """True for a file to learn from, in which the last message may be the call to make. False for a log."""
    references: tuple[str, ...] = ()
    """Further replies to the last user turn that are right as well."""
    ignored: tuple[str, ...] = ()
    """Fields outside of messages that were not read, each with the reason."""

    @property
    def all_ignored(self) -> tuple[str, ...]:
        """Everything that was not read, each part once."""
        parts = [*self.ignored, *(part for message in self.messages for part in message.ignored)]
        agent = [message for message in self.messages if message.role == "assistant"]
        if any(message.reasoning or split_reasoning(message.content)[0] for message in agent):
            parts.append("message.reasoning: the reasoning before a reply does not belong to a reference")
        if any(not message.weight for message in self.messages):
            parts.append("message.content: a turn of weight 0 is not a reference")
        return tuple(dict.fromkeys(parts))


def chat_fields(chat: LoggedChat, *, users: LoggedUsers) -> dict[str, Any]:
    """Fields of a scenario: its user, context, tools, recorded calls and reference replies.

    If a tool was called but not declared, its schema is inferred from its calls. Raises `ValueError` if the chat has no
    user turn or over 2,000 messages, a call without a result or a result without a call, a system message after the
    beginning, or two speakers of one role.
    """
    if len(chat.messages) > MAX_MESSAGES:
        raise ValueError(f"over-long chat: {len(chat.messages)} messages, at most {MAX_MESSAGES}")
    _refuse_late_instructions(chat.messages)
    _refuse_several_speakers(chat.messages)
    spoken = [message for message in chat.messages if message.role in ("user", "assistant")]
    lines = [(message.role, _answer(message)) for message in spoken]
    user = user_fields(lines, users=users)
    messages, expected = _split_expected_call(chat, user_turns=len(user_turns_and_replies(lines, "user")[0]))
    recorded = record_calls(messages)
    declared = {tool["name"] for tool in chat.tools}
    calls = [(call["name"], call["arguments"]) for call in (*recorded, *expected) if call["name"] not in declared]
    tools = [*chat.tools, *infer_tool_schemas(calls)]
    learned = [(role, text if message.weight else "") for message, (role, text) in zip(spoken, lines, strict=True)]
    replies = [reply for reply in (*user_turns_and_replies(learned, "user")[1], *chat.references) if reply.strip()]
    return {
        **user,
        "domain": "tool_use" if tools else "general",
        "context": _context(chat.messages, lines),
        "tools": tools,
        "world": {"recorded": recorded} if recorded else {},
        "expected": {"responses": replies, **({"calls": expected} if expected else {})},
    }


def _answer(message: LoggedMessage) -> str:
    """Text of a message. The agent's reasoning is left out."""
    return split_reasoning(message.content)[1] if message.role == "assistant" else message.content


def _refuse_late_instructions(messages: Sequence[LoggedMessage]) -> None:
    began = False
    for number, message in enumerate(messages):
        if began and message.role == "system" and message.content.strip():
            agent = any(message.role == "assistant" for message in messages)
            raise ValueError(
                f"late system message: message {number}, because a scenario cannot keep its place in the chat"
                f"{'' if agent else '. If the system is the agent, set tags: {system: assistant}'}"
            )
        began = began or message.role != "system"


def _refuse_several_speakers(messages: Sequence[LoggedMessage]) -> None:
    """A scenario has one user and one agent."""
    for role in ("user", "assistant"):
        names = dict.fromkeys(message.name for message in messages if message.role == role and message.name)
        if len(names) > 1:
            shown = ", ".join(excerpt(name, _SHOWN) for name in list(names)[:3])
            raise ValueError(f"several speakers of one role: {role} {shown}. A scenario has one user and one agent")


def _split_expected_call(chat: LoggedChat, *, user_turns: int) -> tuple[Sequence[LoggedMessage], list[dict[str, Any]]]:
    """Messages without the calls at the end that are to be learned, and these calls."""
    last = chat.messages[-1]
    if not chat.ends_with_expected_call or not last.calls:
        return chat.messages, []
    turn = max(0, user_turns - 1)
    calls = [{"name": call.name, "arguments": dict(call.arguments), "turn": turn} for call in last.calls]
    return (*chat.messages[:-1], replace(last, calls=())), calls if last.weight else []


def user_fields(lines: Sequence[tuple[str, str]], *, users: LoggedUsers) -> dict[str, Any]:
    """The user of a scenario, from lines of `user` and `assistant`: `user_responses`, or a `goal` in the user's words.

    Raises `ValueError` if the chat has no user turn.
    """
    turns, _ = user_turns_and_replies(lines, "user")
    if not turns:
        raise ValueError("no user turn: a scenario needs one")
    if users == "script":
        return {"user_responses": turns}
    if empty := [number for number, turn in enumerate(turns) if not turn.strip()]:
        raise ValueError(f"empty user turn: number {empty[0]}")
    opening, *later = (" ".join(turn.split()) for turn in turns)
    return {"goal": "\n".join([f"Reason: {opening}", *([f"Known: {' '.join(later)}"] if later else [])])}


def order_results(messages: Sequence[LoggedMessage]) -> list[int]:
    """Positions of the messages, with the results of each turn in the order of its calls.

    Raises `ValueError` if a result does not belong to a call of its turn.
    """
    keys: list[tuple[int, int]] = []
    pending: list[tuple[LoggedCall, int]] = []
    turn = 0
    for number, message in enumerate(messages):
        if message.role == "tool":
            keys.append((turn, pending.pop(_answered(pending, message, number))[1]))
        else:
            turn, pending = number, [(call, place) for place, call in enumerate(message.calls)]
            keys.append((turn, -1))
    return sorted(range(len(keys)), key=keys.__getitem__)


def record_calls(messages: Sequence[LoggedMessage]) -> list[dict[str, Any]]:
    """Calls in order, as `{"name", "arguments", "turn", "result"}`. If a result is JSON, its value is taken.

    Raises `ValueError` if the result of a call does not follow before the next message of the user or the agent, or if
    a result belongs to no pending call.
    """
    recorded: list[dict[str, Any]] = []
    pending: list[tuple[LoggedCall, dict[str, Any]]] = []
    turn, speaker = -1, ""
    for number, message in enumerate(messages):
        if message.role in ("user", "assistant"):
            _refuse_unanswered(pending)
            turn += message.role == "user" and speaker != "user"
            speaker = message.role
        if len(message.calls) > MAX_MESSAGES:
            raise ValueError(f"too many calls: {len(message.calls)} in message {number}, at most {MAX_MESSAGES}")
        for call in message.calls:
            entry = {"name": call.name, "arguments": dict(call.arguments), "turn": max(0, turn)}
            recorded.append(entry)
            pending.append((call, entry))
        if message.role == "tool":
            _, entry = pending.pop(_answered(pending, message, number))
            entry["result"] = json_value(message.content)
    _refuse_unanswered(pending)
    return recorded


def _answered(pending: Sequence[tuple[LoggedCall, Any]], message: LoggedMessage, number: int) -> int:
    """Index of the call that a result answers: the call with its id, or the first one if the result names no id."""
    for index, (call, _) in enumerate(pending):
        if message.answers is None or call.id == message.answers:
            return index
    name = "without a call" if message.answers is None else f"for id {excerpt(message.answers, _SHOWN)}"
    waiting = ", ".join(excerpt(call.id or call.name, _SHOWN) for call, _ in pending[:3]) or "none"
    raise ValueError(f"orphaned tool result: message {number}, {name}. Calls that wait for one: {waiting}")


def _refuse_unanswered(pending: Sequence[tuple[LoggedCall, Any]]) -> None:
    if pending:
        call = pending[0][0]
        name = call.name if call.id is None else f"{call.name}, id {call.id}"
        raise ValueError(f"unanswered tool call: {excerpt(name, _SHOWN)} has no result before the next message")


def _context(messages: Sequence[LoggedMessage], lines: Sequence[tuple[str, str]]) -> str:
    """Text of the system messages, and the agent's greeting."""
    system = [message for message in messages if message.role == "system"]
    parts = [f"{message.name}: {message.content}" if message.name else message.content for message in system]
    turns = merge_speaker_turns(lines)
    if turns and turns[0][0] == "assistant" and turns[0][1].strip():
        parts.append(f"You opened the conversation: {turns[0][1]}")
    return "\n\n".join(part for part in parts if part.strip())


def json_value(text: str) -> Any:
    """Value of a JSON text, unless it is a plain value that JSON would write differently, e.g. `1.10` stays a text."""
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
    return value if isinstance(value, (dict, list)) or json.dumps(value) == text else text


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOrigin:
    """Name of a logged chat, and the format that it was read from."""

    id: str
    source: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The log's own metadata. `category`, `licence` (or `license`) and `consent` are read from it if they are text."""

    def fields(self) -> dict[str, Any]:
        """Fields `id` and `metadata` of the scenario."""
        texts = {name: value for name, value in self.metadata.items() if isinstance(value, str)}
        licence = texts.get("licence") or texts.get("license") or ""
        category, consent = texts.get("category") or "general", texts.get("consent") or ""
        return {
            "id": self.id,
            "metadata": {"category": category, "source": self.source, "licence": licence, "consent": consent},
        }
