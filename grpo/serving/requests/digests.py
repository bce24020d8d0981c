"""Digests by which a conversation is recognized if its client sends no ids.

    conversation   owner, user, tools, calls, and each message     from the digests of its parts: a short text
    part           one message, the tools, the ids of the calls    from the JSON of what the client wrote: a long text

`Preparation` makes the digests of the parts once per request, because a client may write megabytes. The event loop
combines them, once for each set of tools that the conversation may have begun with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from grpo.messages import Message, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestedTools:
    """Tools of a client or a version."""

    tools: tuple[Tool, ...]
    digest: str

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> Self:
        """Tools with their digest."""
        return cls(tools=tuple(tools), digest=_digest([tool.to_template() for tool in tools]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestedMessages:
    """Messages of a conversation, each with its digest, and the digest of the ids of their calls.

    White space around the texts of messages is ignored, because many clients trim it.
    """

    messages: tuple[Message, ...]
    digests: tuple[str, ...]
    calls: str

    @classmethod
    def of(cls, messages: Sequence[Message], calls: Iterable[str] = ()) -> Self:
        """Messages with their digests. `calls` are the ids of their calls."""
        digests = (_digest(replace(each, content=each.content.strip()).to_template()) for each in messages)
        return cls(messages=tuple(messages), digests=tuple(digests), calls=_digest(sorted({*calls})))


def conversation_digest(
    owner: str, user: str | None, tools: DigestedTools, messages: DigestedMessages, *, until: int | None = None
) -> str:
    """Digest of a conversation with these messages, or of its beginning before the message `until`."""
    return _digest([owner, user, tools.digest, messages.calls, messages.digests[:until]])


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
