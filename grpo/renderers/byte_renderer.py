"""A renderer for policies that read messages and have no tokenizer: a script, a chat server, a backend of your own.

Ids 0–255 are the bytes of UTF-8, 256 ends a turn, 257 and on say who speaks. Nothing is learned on such ids; they let
rollouts of these policies be recorded, counted and limited like all others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from grpo.messages import ROLES, TOOL_CALL_CLOSE, TOOL_CALL_OPEN, Message, Tool
from grpo.renderers.chat_template import Renderer

_STOP = 256
_ETAGS = {role: _STOP + 1 + place for place, role in enumerate(ROLES)}


class ByteRenderer(Renderer):
    """Each byte a token; no package is needed."""

    def __init__(self, *, tools: Sequence[Tool] = ()) -> None:
        self.tools = tuple(tools)
        self.stop_id = _STOP
        self.hash = "bytes"

    def build_prompt(self, messages: Sequence[Message]) -> list[int]:
        """See `Renderer.build_prompt`; the tools stand first, as a system message."""
        signatures = json.dumps([tool.to_template() for tool in self.tools])
        tools = [Message(role="system", content=signatures)] if self.tools else []
        return self.build_continuation((), (*tools, *messages))

    def build_continuation(self, messages: Sequence[Message], new: Sequence[Message]) -> list[int]:
        """See `Renderer.build_continuation`."""
        return [
            *(id_ for message in new for id_ in (_ETAGS[message.role], *self.encode_reply(message))),
            _ETAGS["assistant"],
        ]

    def encode_reply(self, message: Message) -> list[int]:
        """See `Renderer.encode_reply`."""
        calls = "".join(f"{TOOL_CALL_OPEN}{call}{TOOL_CALL_CLOSE}" for call in message.tool_calls)
        return [*(message.content + calls).encode(errors="replace"), self.stop_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Renderer.decode`."""
        return bytes(id_ for id_ in token_ids if id_ < _STOP).decode(errors="replace")
