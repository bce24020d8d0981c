"""Answered turns, and the places of requests that continue them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from grpo.agents.transcript import TokenTranscript
from grpo.messages import Message, Tool
from grpo.serving.protocol.chat_response import call_id
from grpo.serving.requests.digests import DigestedMessages, DigestedTools, conversation_digest

if TYPE_CHECKING:
    from grpo.serving.engine.versions import ServedVersion

Joined = Literal["new", "id", "response", "prefix", "fork", "unknown prefix", "ambiguous", "other version"]
"""Way in which a request was joined to its conversation."""


@dataclass(slots=True, kw_only=True, eq=False)
class AnsweredTurn:
    """Answered turn, from which its conversation goes on.

    If its messages are long, `Preparation` makes it, because computing their digests takes time.
    """

    turn_id: str
    conversation_id: str
    owner: str
    user: str | None
    version: ServedVersion | None
    """Version that answers the conversation. None after that version is retired."""
    tools: tuple[Tool, ...]
    messages: tuple[Message, ...]
    """The conversation as the client knows it, with the reply as the last message."""
    transcript: TokenTranscript | None
    """Tokens of the conversation. None after its version is retired."""
    earlier_calls: frozenset[str] = frozenset()
    """Ids of the calls in earlier replies, as the client knows them."""
    strategy: str | None = None
    """Strategy of the agent with which the conversation began."""
    in_progress: int = 0
    """Number of requests in progress that continue this turn."""
    successors: int = 0
    """Number of answered turns that follow this turn."""
    digested_tools: DigestedTools = field(init=False)
    digests: tuple[str, ...] = field(init=False)
    """Digests of its messages."""
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        messages = DigestedMessages.of(self.messages, self.calls)
        self.digested_tools, self.digests = DigestedTools.of(self.tools), messages.digests
        self.digest = conversation_digest(self.owner, self.user, self.digested_tools, messages)

    @property
    def version_runs(self) -> bool:
        """True while the version is loaded and its engine runs."""
        return self.version is not None and not self.version.retired and self.version.stopped is None

    @property
    def served_by(self) -> ServedVersion:
        """Version that answers the conversation. Fails an assertion if it is retired."""
        assert self.version is not None
        return self.version

    @property
    def tokens(self) -> TokenTranscript:
        """Tokens of the conversation. Fails an assertion if its version is retired."""
        assert self.transcript is not None
        return self.transcript

    @property
    def size(self) -> int:
        """Number of tokens that this turn keeps in memory."""
        return 0 if self.transcript is None else len(self.transcript.ids)

    @property
    def call_ids(self) -> list[str]:
        """Ids of the calls in the reply. The client still has to send their results."""
        return [call_id(self.turn_id, position) for position in range(len(self.messages[-1].tool_calls))]

    @property
    def calls(self) -> frozenset[str]:
        """Ids of all calls of the conversation."""
        return self.earlier_calls.union(self.call_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Place of a request: its conversation, the turn before it, and its new messages."""

    conversation_id: str
    before: AnsweredTurn | None
    new: tuple[Message, ...]
    history: tuple[Message, ...]
    """The conversation as the client knows it, without the reply to come."""
    joined: Joined
    retired_turn: str | None = None
    """Id of the turn before if its version is retired. Then `before` is None, and the whole conversation is read."""

    @property
    def characters(self) -> int:
        """Number of characters in the texts of the conversation."""
        return sum(len(message.content) for message in self.history)

    def to_read(self, system_prompt: str) -> tuple[Message, ...]:
        """Messages that the policy has not read yet.

        At the beginning of a conversation, the environment's system prompt comes first. If the client sends a system
        message as well, it is appended to that prompt.
        """
        if self.before is not None:
            return self.new
        given = self.new[0].content if self.new[0].role == "system" else ""
        content = "\n\n".join(filter(None, (system_prompt, given)))
        rest = self.new[1:] if self.new[0].role == "system" else self.new
        return (Message(role="system", content=content), *rest) if content else rest
