"""Replies that are messages with a channel and a recipient, as in OpenAI's harmony format of gpt-oss."""

from __future__ import annotations

import re

from grpo.messages import Message, ToolCall
from grpo.renderers.argument_values import read_arguments
from grpo.renderers.tool_formats import refusal

_HEADER = re.compile(r"(?:<\|start\|>assistant)?(?P<header>[^<]*(?:<\|(?!message\|)[^|]*\|>[^<]*)*)<\|message\|>")
_RECIPIENT = re.compile(r"to=functions\.([\w.\-]+)")
_SHOWN = 80
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def parse_channels(text: str) -> Message:
    """Parse messages with channels: analysis is reasoning, a message to a recipient is a call, the rest is content.

    <|channel|>analysis<|message|>x<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}

    If a message with a recipient is not a valid call, it becomes content, with the reason in `malformed`.
    """
    reasoning: list[str] = []
    contents: list[str] = []
    calls: list[ToolCall] = []
    malformed: str | None = None
    for part in text.split("<|end|>"):
        header = _HEADER.match(part.lstrip())
        if header is None and _RECIPIENT.search(part) is not None:
            malformed = malformed or part.strip()[:_SHOWN]
        if header is None:
            contents.append(part)
            continue
        body = part.lstrip()[header.end() :]
        recipient, channel = _RECIPIENT.search(header["header"]), _CHANNEL.search(header["header"])
        if recipient is not None:
            try:
                calls.append(ToolCall(name=recipient[1], arguments=read_arguments(body)))
            except ValueError as error:
                malformed = malformed or part.strip()[:_SHOWN] + refusal(error)
                contents.append(part)
        elif channel is not None and channel[1] == "analysis":
            reasoning.append(body.strip())
        else:
            contents.append(body)
    return Message(
        role="assistant",
        content="".join(contents).strip() if calls or malformed is None else text.strip(),
        tool_calls=tuple(calls),
        malformed=None if malformed is None else f"not a tool call: {malformed}",
        reasoning="\n".join(filter(None, reasoning)) or None,
    )
