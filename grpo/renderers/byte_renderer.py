"""Renderer for policies that read messages and have no tokenizer: a script, a chat server, a custom backend.

Ids 0–255 are UTF-8 bytes, 256 is the stop token, and ids from 257 mark the role. These trajectories are recorded,
counted and limited like all others, but they are not trained on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from grpo.messages import ROLES, TOOL_CALL_CLOSE, TOOL_CALL_OPEN, Message, Tool
from grpo.renderers.chat_template import Renderer
from grpo.renderers.reply_format import HERMES

_STOP = 256
_ROLE_IDS = {role: _STOP + 1 + i for i, role in enumerate(ROLES)}


class ByteRenderer(Renderer):
    """Renderer with one token per byte. It needs no optional package."""

    def __init__(self, *, tools: Sequence[Tool] = ()) -> None:
        self.tools = tuple(tools)
        self.stop_id = _STOP
        self.stop_ids = frozenset({_STOP})
        self.hash = "bytes"

    def build_prompt(self, messages: Sequence[Message]) -> list[int]:
        """See `Renderer.build_prompt`. The tools come first, as a system message."""
        signatures = json.dumps([tool.to_template() for tool in self.tools])
        tools = [Message(role="system", content=signatures)] if self.tools else []
        return self.build_continuation((), (*tools, *messages))

    def build_continuation(
        self, messages: Sequence[Message], new: Sequence[Message], *, ended_by: int | None = None
    ) -> list[int]:
        """See `Renderer.build_continuation`."""
        return [
            *(id_ for message in new for id_ in (_ROLE_IDS[message.role], *self.encode_reply(message))),
            _ROLE_IDS["assistant"],
        ]

    def encode_reply(self, message: Message, after: Sequence[Message] = ()) -> list[int]:
        """See `Renderer.encode_reply`."""
        calls = "".join(f"{TOOL_CALL_OPEN}{call}{TOOL_CALL_CLOSE}" for call in message.tool_calls)
        return [*(message.content + calls).encode(errors="replace"), self.stop_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Renderer.decode`."""
        return bytes(id_ for id_ in token_ids if id_ < _STOP).decode(errors="replace")

    def parse_reply(self, token_ids: Sequence[int]) -> Message:
        """See `Renderer.parse_reply`."""
        return self.parse_text(self.decode(token_ids))

    def parse_text(self, text: str) -> Message:
        """See `Renderer.parse_text`."""
        return HERMES.parse(text)
