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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, TypeVar

from pydantic_core import from_json

from grpo.config.chats import LoggedUsers
from grpo.data_errors import excerpt
from grpo.messages import Message, ToolCall, results_message, split_reasoning
from grpo.scenarios.readers.messages.speaker_turns import merge_speaker_turns, user_turns_and_replies
from grpo.scenarios.tool_schemas import infer_tool_schemas

MAX_MESSAGES = 2_000
"""Largest number of messages of a chat, and of tool calls of one message."""
_SHOWN = 80  # characters of a value in a reason
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCall(ToolCall):
    """Tool call of a log in a foreign format."""

    id: str | None = None
    """Name by which its result refers to it. None if the format has results in the order of calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedMessage(Message):
    """Message of a log in a foreign format. Developer messages are system messages."""

    tool_calls: tuple[LoggedCall, ...] = ()
    answers: str | None = None
    """Id of the call that a tool's message is the result of."""
    answers_tool: str | None = None
    """Name of the tool that returned the result. If the result has no id, the name decides which call it belongs to."""
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

    Raises `ValueError` like `conversation_fields`, and if two speakers share a role.
    """
    _check_size(chat.messages)
    _refuse_late_instructions(chat.messages)
    _refuse_several_speakers(chat.messages)
    messages, expected = _split_expected_call(chat)
    fields = conversation_fields(messages, chat.tools, users=users, expected=expected)
    weights = [message.weight for message in chat.messages if message.role in ("user", "assistant")]
    learned = [(role, text if weight else "") for weight, (role, text) in zip(weights, _lines(messages), strict=True)]
    replies = [reply for reply in (*user_turns_and_replies(learned, "user")[1], *chat.references) if reply.strip()]
    return {**fields, "expected": {"responses": replies, **({"calls": expected} if expected else {})}}


def conversation_fields(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    *,
    users: LoggedUsers,
    expected: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Fields of a scenario that a conversation determines by itself: user, context, tools and recorded calls.

    If a tool was called but not declared, its schema is inferred from its calls and the `expected` ones. Raises
    `ValueError` if the conversation has no user turn or over 2,000 messages, a call without a result or a result
    without a call, or a system message after the beginning.
    """
    _check_size(messages)
    _refuse_late_instructions(messages)
    lines = _lines(messages)
    user = user_fields(lines, users=users)
    recorded = record_calls(messages)
    declared = {tool["name"] for tool in tools}
    calls = [(call["name"], call["arguments"]) for call in (*recorded, *expected) if call["name"] not in declared]
    all_tools = [*tools, *infer_tool_schemas(calls)]
    return {
        **user,
        "domain": "tool_use" if all_tools else "general",
        "context": _context(messages, lines),
        "tools": all_tools,
        "world": {"recorded": recorded} if recorded else {},
    }


def _check_size(messages: Sequence[Message]) -> None:
    if len(messages) > MAX_MESSAGES:
        raise ValueError(f"over-long chat: {len(messages)} messages, at most {MAX_MESSAGES}")


def _lines(messages: Iterable[Message]) -> list[tuple[str, str]]:
    """Speaker and text of the messages of the user and the agent. The agent's reasoning is left out."""
    return [
        (message.role, message.content if message.role == "user" else split_reasoning(message.content)[1])
        for message in messages
        if message.role in ("user", "assistant")
    ]


def _refuse_late_instructions(messages: Sequence[Message]) -> None:
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


def _split_expected_call(chat: LoggedChat) -> tuple[Sequence[LoggedMessage], list[dict[str, Any]]]:
    """Messages without the calls at the end that are to be learned, and these calls."""
    if not chat.ends_with_expected_call or not chat.messages or not chat.messages[-1].tool_calls:
        return chat.messages, []
    last = chat.messages[-1]
    turn = max(0, len(user_turns_and_replies(_lines(chat.messages), "user")[0]) - 1)
    calls = [{"name": call.name, "arguments": dict(call.arguments), "turn": turn} for call in last.tool_calls]
    return (*chat.messages[:-1], replace(last, tool_calls=())), calls if last.weight else []


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


def order_results(messages: Sequence[Message]) -> list[int]:
    """Positions of the messages, with the results of each turn in the order of its calls.

    Raises `ValueError` if a result does not belong to a call of its turn.
    """
    keys: list[tuple[int, int]] = []
    pending: list[tuple[ToolCall, int]] = []
    turn = 0
    for number, message in enumerate(_with_known_tools(messages)):
        if message.role == "tool":
            keys.append((turn, pending.pop(_answered(pending, message, number))[1]))
        else:
            turn, pending = number, [(call, place) for place, call in enumerate(message.tool_calls)]
            keys.append((turn, -1))
    return sorted(range(len(keys)), key=keys.__getitem__)


def to_conversation(logged: Sequence[LoggedMessage]) -> tuple[Message, ...]:
    """Messages of a file as the policy reads them in an episode and in service.

    System messages at the front become one. The results of several calls of a turn become one message with a JSON list
    of them, in the order of the calls. Raises `ValueError` if a result names an id that no call of its turn has.
    """
    logged = _with_known_tools(logged)
    is_named = any(message.answers is not None or message.answers_tool is not None for message in logged)
    messages = [_to_message(logged[index]) for index in (order_results(logged) if is_named else range(len(logged)))]
    front = list(takewhile(lambda message: message.role == "system", messages))
    joined = [Message(role="system", content="\n\n".join(message.content for message in front))] if front else []
    remaining = messages[len(front) :]
    while remaining:
        message, *remaining = remaining
        joined.append(message)
        results = list(takewhile(lambda result: result.role == "tool", remaining))
        if 1 < len(message.tool_calls) == len(results):
            joined.append(results_message([result.content for result in results]))
            remaining = remaining[len(results) :]
    return tuple(joined)


def _to_message(logged: LoggedMessage) -> Message:
    return Message(
        role=logged.role,
        content=logged.content,
        tool_calls=tuple(ToolCall(name=call.name, arguments=call.arguments) for call in logged.tool_calls),
        reasoning=logged.reasoning,
    )


def record_calls(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Calls in order, as `{"name", "arguments", "turn", "result"}`. If a result is JSON, its value is taken.

    Our own messages have the results of several calls as one JSON list. Raises `ValueError` if the result of a call
    does not follow before the next message of the user or the agent, or if a result belongs to no pending call.
    """
    recorded: list[dict[str, Any]] = []
    pending: list[tuple[ToolCall, dict[str, Any]]] = []
    turn, speaker = -1, ""
    messages = _with_known_tools(messages)
    for number, message in enumerate(messages):
        if message.role in ("user", "assistant"):
            _refuse_unanswered(pending)
            turn += message.role == "user" and speaker != "user"
            speaker = message.role
        if len(message.tool_calls) > MAX_MESSAGES:
            raise ValueError(f"too many calls: {len(message.tool_calls)} in message {number}, at most {MAX_MESSAGES}")
        for call in message.tool_calls:
            entry = {"name": call.name, "arguments": dict(call.arguments), "turn": max(0, turn)}
            recorded.append(entry)
            pending.append((call, entry))
        if message.role == "tool" and (results := _joined_results(messages, number, len(pending))) is not None:
            for (_, entry), value in zip(pending, results, strict=True):
                entry["result"] = value
            pending = []
        elif message.role == "tool":
            _, entry = pending.pop(_answered(pending, message, number))
            entry["result"] = json_value(message.content)
    _refuse_unanswered(pending)
    return recorded


def _joined_results(messages: Sequence[Message], number: int, pending: int) -> list[Any] | None:
    """Results of all pending calls, if there are several and this is their only message with results.

    Only our own messages join results. In another log, a list may be the result of one of the calls.
    """
    message, following = messages[number], messages[number + 1 : number + 2]
    is_only = messages[number - 1].role != "tool" and not (following and following[0].role == "tool")
    if pending < 2 or isinstance(message, LoggedMessage) or not is_only:
        return None
    value = json_value(message.content)
    return value if isinstance(value, list) and len(value) == pending else None


def _answered(pending: Sequence[tuple[ToolCall, Any]], message: Message, number: int) -> int:
    """Index of the call that a result answers: the call with its id, or else the first call of its tool.

    A result without either answers the first call.
    """
    answers, tool = _answers(message), _answers_tool(message)
    for index, (call, _) in enumerate(pending):
        if (tool in (None, call.name)) if answers is None else (_id(call) == answers):
            return index
    named = "without a call" if tool is None else f"of the tool {excerpt(tool, _SHOWN)}"
    name = named if answers is None else f"for id {excerpt(answers, _SHOWN)}"
    waiting = ", ".join(excerpt(_id(call) or call.name, _SHOWN) for call, _ in pending[:3]) or "none"
    raise ValueError(f"orphaned tool result: message {number}, {name}. Calls that wait for one: {waiting}")


def _with_known_tools(messages: Sequence[M]) -> list[M]:
    """Messages whose results name their tools only if all results of a turn name tools of its calls.

    Otherwise, e.g. with `functions.look_up` for `look_up`, or if the calls are in the text, results are in the order of
    the calls.
    """
    known, at = list(messages), 0
    while at < len(known):
        calls, at = {call.name for call in known[at].tool_calls}, at + 1
        results = list(takewhile(lambda message: message.role == "tool", known[at:]))
        if not all(_answers(result) is not None or _answers_tool(result) in calls for result in results):
            known[at : at + len(results)] = [
                replace(result, answers_tool=None) if isinstance(result, LoggedMessage) else result
                for result in results
            ]
        at += len(results)
    return known


def _answers(message: Message) -> str | None:
    """Id of the call that a result names. None in our own messages."""
    return message.answers if isinstance(message, LoggedMessage) else None


def _answers_tool(message: Message) -> str | None:
    """Name of the tool that a result is of. None in our own messages."""
    return message.answers_tool if isinstance(message, LoggedMessage) else None


def _id(call: ToolCall) -> str | None:
    """Id of a call. None in our own messages, in which the results are in the order of the calls."""
    return call.id if isinstance(call, LoggedCall) else None


def _refuse_unanswered(pending: Sequence[tuple[ToolCall, Any]]) -> None:
    if pending:
        call, id = pending[0][0], _id(pending[0][0])
        name = call.name if id is None else f"{call.name}, id {id}"
        raise ValueError(f"unanswered tool call: {excerpt(name, _SHOWN)} has no result before the next message")


def _context(messages: Sequence[Message], lines: Sequence[tuple[str, str]]) -> str:
    """Text of the system messages, with their speakers if these have names, and the agent's greeting."""
    parts = []
    for message in messages:
        if message.role == "system":
            name = message.name if isinstance(message, LoggedMessage) else None
            parts.append(f"{name}: {message.content}" if name else message.content)
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
