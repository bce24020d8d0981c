"""Trial of a template's replies when it is chosen: each kind of turn must parse back as it was rendered.

Otherwise such a turn would fail in the middle of a rollout, or would be lost without an error.
"""

from __future__ import annotations

from grpo.messages import Message, ToolCall
from grpo.renderers.reply_format import EXAMPLE, Render, ReplyFormat

_TEXT, _THOUGHT = "two words", "a thought"
_CALLS = (
    ToolCall(name=EXAMPLE.name, arguments={"text": "two words", "count": 3, "flag": False}),
    ToolCall(name=EXAMPLE.name, arguments={"items": [1, 2], "record": {"a": "b"}}),
    ToolCall(name=EXAMPLE.name, arguments={}),
)


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
