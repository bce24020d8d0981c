"""Messages and tools of a request, with the digests that conversations are looked up by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from grpo.serving.protocol.chat_request import ChatRequest
from grpo.serving.requests.digests import DigestedMessages, DigestedTools


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestedRequest:
    """Messages and tools of a request, with their digests."""

    messages: DigestedMessages
    tools: DigestedTools | None
    """Tools of the client, or None if the version's tools are used."""

    @classmethod
    def of(cls, request: ChatRequest, open_calls: Sequence[str]) -> Self:
        """Read a request. See `ChatRequest.to_messages`."""
        messages = DigestedMessages.of(request.to_messages(open_calls), request.call_ids)
        return cls(messages=messages, tools=None if request.tools is None else DigestedTools.of(request.to_tools()))
