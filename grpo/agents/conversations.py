"""Concurrent conversations with one agent in one process, each with its own user, history and strategy.

A `ConversationManager` is for programs and notebooks that talk to an agent directly, and for the chat of `grpo
evaluate`. It knows no keys, limits or versions: `grpo serve` has its own conversations in `grpo.serving.requests`.
"""

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
    """Log record of one message: its conversation, policy and strategy."""

    conversation_id: str
    turn_id: int
    ts: str
    """UTC, ISO 8601."""
    policy_hash: str
    """Policy that generates the assistant turns."""
    role: str
    content: str
    strategy: str | None
    reasoning: str | None = None
    dropped: tuple[int, ...] = ()
    """Indices of earlier messages that were left out of the prompt."""


@dataclass(slots=True, kw_only=True)
class ConversationState:
    """State of one conversation with one user."""

    conversation_id: str
    user_id: str
    strategy: str | None
    context: Context
    messages: list[Message] = field(default_factory=list)
    turns: list[TurnRecord] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a turn is generated."""

    @property
    def reply_count(self) -> int:
        """Number of assistant turns so far."""
        return sum(turn.role == "assistant" for turn in self.turns)


class ConversationManager:
    """Isolated conversations of many users. Above `max_conversations`, the least recently used one is removed.

    If `log` is given, each turn is appended to it as a line of JSON.
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
        """Start a conversation with a random, unguessable id. Raises `ConfigError` for an unknown strategy."""
        conversation = ConversationState(
            conversation_id=uuid.uuid4().hex,
            user_id=user_id,
            strategy=_checked_strategy(strategy or self.agent.config.strategy),
            context=dict(context or {}),
        )
        self._conversations[conversation.conversation_id] = conversation
        if len(self._conversations) > self.max_conversations:
            del self._conversations[next(iter(self._conversations))]
        return conversation

    def get_conversation(self, conversation_id: str) -> ConversationState:
        """Look up a conversation. Raises `DataError` if it is unknown, ended or removed."""
        conversation = self._conversations.get(conversation_id)
        if conversation is None:
            raise DataError(
                f"no conversation {conversation_id!r} is open, because it was never started, has ended or was removed. "
                "Start another"
            )
        return conversation

    async def generate_multiturn_response(
        self, conversation_id: str, user_message: str, *, strategy: str | None = None
    ) -> str:
        """Generate the reply to a user message. `strategy` replaces the conversation's strategy from now on.

        Messages of one conversation are answered in sequence. Raises `DataError` if the conversation is unknown, or if
        it has `max_conversation_turns` replies. If a reply fails, the conversation does not change.
        """
        conversation = self.get_conversation(conversation_id)
        requested = _checked_strategy(strategy)
        async with conversation.lock:
            if conversation.reply_count >= self.max_conversation_turns:
                raise DataError(
                    f"conversation {conversation_id} has had its {conversation.reply_count} turns. Start another, or "
                    "raise max_conversation_turns"
                )
            strategy = requested or conversation.strategy
            message = Message(role="user", content=user_message)
            context: dict[str, Any] = {**conversation.context, "user_id": conversation.user_id, "strategy": strategy}
            received_at = self._now()
            async with self.agent.open_transcript() as transcript:
                reply = await self.agent.respond(transcript, (*conversation.messages, message), context)
                conversation.messages = list(transcript.conversation)
            conversation.strategy = strategy
            self.agent.remember(message, reply.text, context)
            self._log(conversation, "user", user_message, received_at)
            self._log(
                conversation, "assistant", reply.text, self._now(), reasoning=reply.reasoning, dropped=reply.dropped
            )
            self._conversations[conversation_id] = self._conversations.pop(conversation_id, conversation)
        return reply.text

    def end_conversation(self, conversation_id: str) -> ConversationState:
        """Remove a conversation and return it. Raises `DataError` for an unknown one."""
        conversation = self.get_conversation(conversation_id)
        del self._conversations[conversation_id]
        return conversation

    def _log(self, conversation: ConversationState, role: str, content: str, at: datetime, **more: Any) -> None:
        assert self.agent.policy is not None
        turn = TurnRecord(
            conversation_id=conversation.conversation_id,
            turn_id=len(conversation.turns),
            ts=at.isoformat(),
            policy_hash=self.agent.policy.hash,
            role=role,
            content=content,
            strategy=conversation.strategy,
            **more,
        )
        conversation.turns.append(turn)
        if self.log is not None:
            with storage_errors(str(self.log)), self.log.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(turn), ensure_ascii=False) + "\n")


def _checked_strategy(strategy: str | None) -> str | None:
    if strategy is not None and strategy not in STRATEGIES:
        raise ConfigError(f"strategy {strategy!r} is unknown. Use one of {', '.join(STRATEGIES)}")
    return strategy
