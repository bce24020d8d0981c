"""Digests of conversations, of the digests of their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo.messages import Message, Tool
from grpo.serving.requests.digests import DigestedMessages, DigestedTools, conversation_digest

MESSAGE = Message(role="user", content="a")


def digest(
    owner: str = "shop",
    user: str | None = None,
    tools: Sequence[Tool] = (),
    messages: Sequence[Message] = (MESSAGE,),
    calls: Sequence[str] = (),
    **fields: Any,
) -> str:
    return conversation_digest(owner, user, DigestedTools.of(tools), DigestedMessages.of(messages, calls), **fields)


def test_a_digest_depends_on_owner_user_tools_and_messages():
    digests = {
        digest(),
        digest("other"),
        digest(user="b"),
        digest(tools=[Tool(name="f")]),
        digest(messages=[MESSAGE, MESSAGE]),
        digest(messages=[Message(role="assistant", content="a")]),
        digest(calls=["call-1"]),
    }
    assert len(digests) == 7


def test_the_digest_of_a_beginning_is_that_of_its_messages():
    """Of two messages the first, which has white space around its text."""
    messages = [Message(role="user", content=" a\n"), Message(role="user", content="b")]
    assert digest(messages=messages, until=1) == digest()
    assert digest(messages=messages) != digest()
