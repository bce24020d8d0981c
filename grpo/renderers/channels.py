"""Replies that are messages with a channel and a recipient, as in OpenAI's harmony format of gpt-oss."""

from __future__ import annotations

import json
import re

from grpo.messages import Message, ToolCall

_HEADER = re.compile(r"(?:<\|start\|>assistant)?(?P<header>[^<]*(?:<\|(?!message\|)[^|]*\|>[^<]*)*)<\|message\|>")
_RECIPIENT = re.compile(r"to=functions\.([\w.\-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def parse_channels(text: str) -> Message:
    """Parse messages with channels: analysis is reasoning, a recipient is called, the rest is content.

    <|channel|>analysis<|message|>x<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}
    """
    reasoning: list[str] = []
    contents: list[str] = []
    calls: list[ToolCall] = []
    for part in text.split("<|end|>"):
        header = _HEADER.match(part.lstrip())
        if header is None and _RECIPIENT.search(part) is not None:
            return _malformed(text, part)
        if header is None:
            contents.append(part)
            continue
        body = part.lstrip()[header.end() :]
        recipient, channel = _RECIPIENT.search(header["header"]), _CHANNEL.search(header["header"])
        if recipient is not None:
            try:
                arguments = json.loads(body)
            except ValueError:
                arguments = None
            if not isinstance(arguments, dict):
                return _malformed(text, part)
            calls.append(ToolCall(name=recipient[1], arguments=arguments))
        elif channel is not None and channel[1] == "analysis":
            reasoning.append(body.strip())
        else:
            contents.append(body)
    return Message(
        role="assistant",
        content="".join(contents).strip(),
        tool_calls=tuple(calls),
        reasoning="\n".join(filter(None, reasoning)) or None,
    )


def _malformed(text: str, part: str) -> Message:
    return Message(role="assistant", content=text.strip(), malformed=f"not a tool call: {part.strip()[:80]}")
