"""Trial of a template when it is chosen: each kind of turn must parse back as it was rendered, and be continued.

Otherwise such a turn would fail in the middle of a rollout, or would be lost without an error.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpo.messages import Message, ToolCall
from grpo.renderers.reply_format import EXAMPLE, Render, ReplyFormat

_TEXT, _THOUGHT = "two words", "a thought"
_CALLS = (
    ToolCall(name=EXAMPLE.name, arguments={"text": "two words", "count": 3, "flag": False}),
    ToolCall(name=EXAMPLE.name, arguments={"items": [1, 2], "record": {"a": "b"}}),
    ToolCall(name=EXAMPLE.name, arguments={}),
)
_SEVERAL, _EXCHANGES = 8, 64
"""Calls of a turn, and exchanges of a conversation, with which a template is tried."""


def conversations_to_go_on(*, calls: bool, reasons: bool) -> Iterator[tuple[tuple[Message, ...], tuple[Message, ...]]]:
    """Conversations that end with the agent, each with the messages that follow, as they occur in rollouts.

    The last turn is a text, a call, a text with a call, or several calls, each with and without reasoning before it.
    Then come an empty text of the user, empty results, one result for several calls, the result of a malformed call,
    and a long conversation, because a template may refuse or leave out earlier messages only there.
    """
    user, result, reply = (Message(role=role, content="x") for role in ("user", "tool", "assistant"))
    silent, empty = Message(role="user", content=""), Message(role="tool", content="")
    call = ToolCall(name="f", arguments={"x": "y"})
    several = (call,) * _SEVERAL
    kinds: list[tuple[str, tuple[ToolCall, ...]]] = [("x", ()), ("", ())]
    kinds += [("", (call,)), ("x", (call,)), ("", several), ("x", several)] if calls else []
    for content, made in kinds:
        for reasoning in (None, "x") if reasons else (None,):
            turn = Message(role="assistant", content=content, tool_calls=made, reasoning=reasoning)
            yield (user, turn), (result,) * len(made) or (user,)
    yield (user, reply), (silent,)
    exchange: tuple[Message, ...] = (user, reply)
    if calls:
        called = Message(role="assistant", content="", tool_calls=several)
        malformed = Message(role="assistant", content="x", malformed="x")
        yield (user, called), (empty,) * _SEVERAL
        exchange = (user, called, result, malformed, result, reply)
    yield exchange * _EXCHANGES, (user,)


def unread_reply(form: ReplyFormat, render: Render, *, reasons: bool, begun: bool) -> str | None:
    """First kind of turn without calls that does not parse back as it was rendered, or None if all do.

    `reasons` is True if replies have reasoning, and `begun` if a prompt opens it.
    """
    kinds = [("a text", _turn(_TEXT)), ("an empty text", _turn(""))]
    kinds += [("a text after reasoning", _turn(_TEXT, reasoning=_THOUGHT))] if reasons else []
    return _first_unread(form, render, kinds, begun=begun)


def unread_call(
    form: ReplyFormat, render: Render, *, reasons: bool, begun: bool, with_content: bool, most_calls: int
) -> str | None:
    """First kind of turn with calls that does not parse back as it was rendered, or None if all do.

    `with_content` is True if a turn may have both a text and calls. `most_calls` is the largest number of its calls.
    """
    if form.calls is None and not form.channels:
        return "a call"
    kinds = [("a call", _turn("", call)) for call in _CALLS]
    kinds += [("a call with a text", _turn(_TEXT, _CALLS[0]))] if with_content else []
    kinds += [("two calls", _turn("", *_CALLS[:2]))] if most_calls > 1 else []
    kinds += [("two calls with a text", _turn(_TEXT, *_CALLS[:2]))] if with_content and most_calls > 1 else []
    kinds += [("a call after reasoning", _turn("", _CALLS[0], reasoning=_THOUGHT))] if reasons else []
    return _first_unread(form, render, kinds, begun=begun)


def _first_unread(form: ReplyFormat, render: Render, kinds: list[tuple[str, Message]], *, begun: bool) -> str | None:
    for kind, turn in kinds:
        text = render(turn)
        if text is None:
            return kind
        parsed = form.parse(text, (EXAMPLE,), begun=begun)
        reasoning = _THOUGHT if turn.reasoning and _THOUGHT in text else None  # some families drop it from old turns
        expected = (turn.content, turn.tool_calls, None, reasoning)
        if (parsed.content, parsed.tool_calls, parsed.malformed, parsed.reasoning) != expected:
            return kind
    return None


def _turn(content: str, *calls: ToolCall, reasoning: str | None = None) -> Message:
    return Message(role="assistant", content=content, tool_calls=calls, reasoning=reasoning)
