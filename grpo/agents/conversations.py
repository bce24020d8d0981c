"""Many conversations with one agent, each with its own user, history and strategy, none of which sees another."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grpo.agents.agent import Context
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.strategies import STRATEGIES
from grpo.errors import ConfigError, DataError
from grpo.messages import Message
from grpo.storage.files import storage_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One message of a conversation, and what produced it."""

    conversation_id: str
    turn_id: int
    ts: str
    """UTC, ISO 8601."""
    policy_hash: str
    """The policy in service; it produced the turns of role assistant."""
    role: str
    content: str
    strategy: str | None
    reasoning: str | None = None
    dropped: tuple[int, ...] = ()
    """Earlier messages that the policy did not see."""


@dataclass(slots=True, kw_only=True)
class ConversationState:
    """One conversation with one user."""

    conversation_id: str
    user_id: str
    strategy: str | None
    context: Context
    messages: list[Message] = field(default_factory=list)
    turns: list[TurnRecord] = field(default_factory=list)
    speaking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def replies(self) -> int:
        """Turns of the agent so far."""
        return sum(turn.role == "assistant" for turn in self.turns)


class ConversationManager:
    """Keeps conversations apart. Of more than `max_conversations` the one that was silent for longest is forgotten.

    With a `log` each turn is a line of JSON in that file.
    """

    def __init__(
        self,
        agent: MultiTurnAgent,
        *,
        max_conversation_turns: int = 20,
        max_conversations: int = 10_000,
        log: Path | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        for name, value in (
            ("max_conversation_turns", max_conversation_turns),
            ("max_conversations", max_conversations),
        ):
            if value < 1:
                raise ConfigError(f"{name} {value} must be at least 1")
        self.agent = agent
        self.max_conversation_turns = max_conversation_turns
        self.max_conversations = max_conversations
        self.log = log
        self._now = now
        self._conversations: dict[str, ConversationState] = {}

    async def start_conversation(
        self, user_id: str, *, strategy: str | None = None, context: Context | None = None
    ) -> ConversationState:
        """Begin a conversation; its `conversation_id` cannot be guessed. Raises `ConfigError` for another strategy."""
        begun = ConversationState(
            conversation_id=uuid.uuid4().hex,
            user_id=user_id,
            strategy=_known(strategy or self.agent.config.strategy),
            context=dict(context or {}),
        )
        self._conversations[begun.conversation_id] = begun
        if len(self._conversations) > self.max_conversations:
            del self._conversations[next(iter(self._conversations))]
        return begun

    def conversation(self, conversation_id: str) -> ConversationState:
        """The conversation with this id; raises `DataError` where there is none, or none any more."""
        found = self._conversations.get(conversation_id)
        if found is None:
            raise DataError(f"no conversation {conversation_id!r}; it was never begun, has ended, or was forgotten")
        return found

    async def generate_multiturn_response(
        self, conversation_id: str, user_message: str, *, strategy: str | None = None
    ) -> str:
        """The agent's reply to what the user says next; a `strategy` holds from here on.

        Messages of one conversation are answered one after the other. Raises `DataError` for an unknown conversation
        or one that has had its turns; a reply that fails leaves the conversation as it was.
        """
        held = self.conversation(conversation_id)
        wanted = _known(strategy)
        async with held.speaking:
            if held.replies >= self.max_conversation_turns:
                raise DataError(
                    f"conversation {conversation_id} has had its {held.replies} turns; start another, or raise "
                    "max_conversation_turns"
                )
            strategy = wanted or held.strategy
            said = Message(role="user", content=user_message)
            context: dict[str, Any] = {**held.context, "user_id": held.user_id, "strategy": strategy}
            heard_at = self._now()
            async with self.agent.transcript() as transcript:
                reply = await self.agent.respond(transcript, (*held.messages, said), context)
                held.messages = list(transcript.conversation)
            held.strategy = strategy
            self.agent.remember(said, reply.text, context)
            self._record(held, "user", user_message, heard_at)
            self._record(held, "assistant", reply.text, self._now(), reasoning=reply.reasoning, dropped=reply.dropped)
            self._conversations[conversation_id] = self._conversations.pop(conversation_id, held)
        return reply.text

    def end_conversation(self, conversation_id: str) -> ConversationState:
        """Forget a conversation; returns it. Raises `DataError` where there is none."""
        ended = self.conversation(conversation_id)
        del self._conversations[conversation_id]
        return ended

    def _record(self, held: ConversationState, role: str, content: str, at: datetime, **more: Any) -> None:
        assert self.agent.policy is not None
        turn = TurnRecord(
            conversation_id=held.conversation_id,
            turn_id=len(held.turns),
            ts=at.isoformat(),
            policy_hash=self.agent.policy.hash,
            role=role,
            content=content,
            strategy=held.strategy,
            **more,
        )
        held.turns.append(turn)
        if self.log is not None:
            with storage_errors(str(self.log)), self.log.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(turn), ensure_ascii=False) + "\n")


def _known(strategy: str | None) -> str | None:
    if strategy is not None and strategy not in STRATEGIES:
        raise ConfigError(f"strategy {strategy!r} is unknown; use one of {', '.join(STRATEGIES)}")
    return strategy
