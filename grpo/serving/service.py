"""Answers to requests: joins them to conversations, generates with the agent, and logs each turn before its end.

    request ─► admission ─► conversation ─► agent ─► engine
                                              │ tokens, as they are sampled
    response ◄── end ◄── log (durable) ◄── reply

Every turn that was admitted is logged once, answered or not, with its reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from grpo.scenarios.served.records import Record, ServedTurn, TurnStatus
from grpo.serving.api_errors import APIError, invalid_request, overloaded
from grpo.serving.chat_request import ChatRequest
from grpo.serving.chat_response import Usage
from grpo.serving.conversations import Conversations
from grpo.serving.exchange import Exchange
from grpo.serving.settings import ServiceSettings
from grpo.serving.versions import ServedVersion, Versions

if TYPE_CHECKING:
    from grpo.serving.callers import Caller

_RATE_WEIGHT = 0.1
"""Weight of the newest turn in the mean duration of a turn."""


class TurnLog(Protocol):
    """Log of turns, see `grpo.serving.log`."""

    async def append(self, record: Record) -> None:
        """Return when the record is durable."""
        ...

    async def erase(self, *, user: str | None = None, conversation_id: str | None = None) -> int:
        """Erase the records of one conversation, or those of a user by the hash of its name; returns their number."""
        ...


class Admitted(Protocol):
    """Request that was admitted."""

    choices: int
    max_tokens: int

    def hold(self) -> None:
        """Count a choice that begins."""
        ...

    def release(self) -> None:
        """Count a choice that has ended."""
        ...


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts since the start."""

    turns: Counter[TurnStatus] = field(default_factory=Counter)
    """Turns in the log, by status."""
    joined: Counter[str] = field(default_factory=Counter)
    """Requests, by how they were joined to a conversation."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that were not admitted, by reason."""
    unlogged: int = 0
    """Turns that the log refused: their requests failed."""


class Service:
    """Service of one model with its versions."""

    def __init__(
        self,
        versions: Versions,
        log: TurnLog,
        settings: ServiceSettings | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        observe: Callable[[ServedTurn, Usage], None] = lambda turn, usage: None,
    ) -> None:
        self.versions = versions
        self.settings = settings or ServiceSettings()
        self.conversations = Conversations(max_tokens=self.settings.conversation_tokens)
        self.counts = Counts()
        self.hub = versions.hub
        self.streaming = 0
        """Replies that go out over WebSockets."""
        self.draining = False
        self.requests = 0
        """Turns in progress and waiting."""
        self.tokens = 0
        """Tokens of their conversations and replies."""
        self.log = log
        self.now = now
        self._observe = observe
        self._turn_s = 1.0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> bool:
        """True when a version is loaded and the server is not stopping."""
        return self.versions.current is not None and not self.draining

    def begin(self, request: ChatRequest, caller: Caller) -> Exchange:
        """Admit a request; raises `APIError` for one that cannot be answered, 503 where the server is full."""
        version = self.version_of(request.model)
        served = version.served
        tools = served.tools if request.tools is None else request.to_tools()
        if own := {tool.name for tool in tools} & {tool.name for tool in served.agent.tools}:
            raise invalid_request(f"tool {min(own)} is one of the agent's own", param="tools")
        last = self.conversations.last_turn(request.conversation, caller.name)
        continuation = self.conversations.find(
            request.to_messages(() if last is None else last.call_ids),
            conversation_id=request.conversation,
            owner=caller.name,
            user=request.user,
            tools=tools,
        )
        if continuation.before is not None:
            version = continuation.before.version
        exchange = Exchange(self, request, caller, version, continuation, tools)
        self.admit(request.n, exchange.max_tokens)
        self.counts.joined[continuation.joined] += 1
        return exchange

    def version_of(self, model: str) -> ServedVersion:
        """Version that answers new conversations with a model; raises `APIError`."""
        version = self.versions.current
        if version is None or self.draining:
            self._refuse("not ready", "the server is starting or stopping", retry_after_s=2.0)
        served = version.served
        if model not in (served.model, served.version, f"{served.model}@champion"):
            message = f"no model {model!r}; this server has {served.model}"
            raise APIError(404, message, param="model", code="model_not_found")
        return version

    def admit(self, requests: int, tokens: int) -> None:
        """Raise `APIError` 503 where the server has no room for so many turns and tokens."""
        if self.requests + requests > self.settings.max_requests:
            self._refuse("requests", "too many requests are in progress", retry_after_s=self._wait_s())
        if self.tokens + tokens > self.settings.max_tokens:
            self._refuse("tokens", "too many tokens are in progress", retry_after_s=self._wait_s())

    def drain(self) -> None:
        """Admit no more requests; callable from a signal's handler."""
        self.draining = True
        self.hub.publish("server.draining")

    def start(self, exchange: Admitted, choice: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a choice of a request in a task, which counts until it has ended."""
        tokens = exchange.max_tokens // exchange.choices
        task = asyncio.create_task(choice)
        self._tasks.add(task)
        self.requests += 1
        self.tokens += tokens
        exchange.hold()

        def ended(_: object) -> None:
            self._tasks.discard(task)
            self.requests -= 1
            self.tokens -= tokens
            exchange.release()

        task.add_done_callback(ended)
        return task

    async def finish(self) -> None:
        """Wait until every turn has ended and is in the log."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _refuse(self, reason: str, message: str, *, retry_after_s: float) -> NoReturn:
        self.counts.refused[reason] += 1
        raise overloaded(f"{message}; try again in {retry_after_s:.1f} s", retry_after_s=retry_after_s)

    def _wait_s(self) -> float:
        """Time in which one more turn ends, by the turns of late."""
        return max(0.1, self._turn_s / max(1, self.requests))

    async def record(self, turn: ServedTurn, usage: Usage) -> None:
        """Log a turn; raises as the log."""
        try:
            await self.log.append(turn)
        except BaseException:
            self.counts.unlogged += 1
            raise
        self.counts.turns[turn.status] += 1
        self._turn_s += _RATE_WEIGHT * (turn.latency_s - self._turn_s)
        self._observe(turn, usage)
