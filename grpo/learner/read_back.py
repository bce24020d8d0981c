"""Check of written replies: their tokens read back as they were written, as a rollout would parse them.

A chat template may have no form for a part of a reply, such as a second call (Llama 3, GigaChat, gpt-oss) or a text
beside a call. The part would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from grpo.errors import DataError
from grpo.messages import Message
from grpo.renderers.chat_template import Renderer


def check_read_back(message: Message, after: Sequence[Message], renderer: Renderer, place: str) -> None:
    """Refuse an assistant turn, `after` these messages, whose tokens a rollout would parse into another message."""
    most = renderer.most_calls
    if len(message.tool_calls) > most:
        raise DataError(
            f"{place} has {len(message.tool_calls)} calls, and the model's chat template renders {most} a turn; write "
            "each call as a turn of its own, with its result after it"
        )
    parsed = renderer.parse_reply(renderer.encode_reply(message, after))
    for part, written, read in (
        ("content", message.content.strip(), parsed.content.strip()),
        ("calls", *([(call.name, dict(call.arguments)) for call in of.tool_calls] for of in (message, parsed))),
        ("reasoning", (message.reasoning or "").strip(), (parsed.reasoning or "").strip()),
    ):
        if written != read:
            raise DataError(
                f"{place}: its {part} reads back from its tokens as {read!r:.200}, and was written as "
                f"{written!r:.200}; write what the model's chat template has a form for"
            )
