"""Check that a rollout would parse the tokens of written replies back as they were written.

A chat template may have no form for a part of a reply, e.g. a second call (Llama 3, GigaChat, gpt-oss) or a text next
to a call. Without the check that part would be lost without an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from grpo.errors import DataError
from grpo.messages import Message
from grpo.renderers.chat_template import Renderer


def check_read_back(message: Message, after: Sequence[Message], renderer: Renderer, place: str) -> None:
    """Refuse an assistant turn `after` these messages if a rollout would parse its tokens into another message."""
    most = renderer.most_calls
    if len(message.tool_calls) > most:
        raise DataError(
            f"{place} has {len(message.tool_calls)} calls, but the model's chat template renders at most {most} per "
            "turn. Write each call as a turn of its own, with its result after it"
        )
    parsed = renderer.parse_reply(renderer.encode_reply(message, after))
    for part, written, read in (
        ("content", message.content.strip(), parsed.content.strip()),
        ("calls", *([(call.name, dict(call.arguments)) for call in of.tool_calls] for of in (message, parsed))),
        ("reasoning", (message.reasoning or "").strip(), (parsed.reasoning or "").strip()),
    ):
        if written != read:
            raise DataError(
                f"{place}: its {part} was written as {written!r:.200}, but reads back from its tokens as "
                f"{read!r:.200}, because the model's chat template has no form for it. Change the message, or leave it "
                "out"
            )
