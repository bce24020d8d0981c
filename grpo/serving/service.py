"""Answers to requests: joins them to conversations, generates with the agent, and logs each turn before its end.

    request ─► admission ─► conversation ─► agent ─► engine
                                              │ tokens, as they are sampled
    response ◄── end ◄── log (durable) ◄── reply

Every turn that was admitted is logged once, answered or not, with its reason.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from grpo.messages import Message, Tool
from grpo.scenarios.served.records import ServedTurn, TurnStatus
from grpo.serving.api_errors import APIError, invalid_request, overloaded
from grpo.serving.chat_request import ChatRequest
from grpo.serving.chat_response import Usage
from grpo.serving.conversations import AnsweredTurn, Continuation, Conversations
from grpo.serving.exchange import Exchange, TurnLog
from grpo.serving.hold import Hold
from grpo.serving.settings import ServiceSettings
from grpo.serving.versions import ServedVersion, Versions

if TYPE_CHECKING:
    from grpo.serving.callers import Caller

_RATE_WEIGHT = 0.1
"""Weight of the newest turn in the mean duration of a turn."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts since the start."""

    turns: Counter[TurnStatus] = field(default_factory=Counter)
    """Turns in the log, by status."""
    joined: Counter[str] = field(default_factory=Counter)
    """Requests, by how they were joined to a conversation."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that were not admitted, by reason."""
    errors: int = 0
    """Turns that ended by an error of agent, engine or model."""
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
        observe: Callable[[ServedTurn, Usage, Sequence[float]], None] = lambda turn, usage, times: None,
    ) -> None:
        self.versions = versions
        self.settings = settings or ServiceSettings()
        self.conversations = Conversations(max_tokens=self.settings.conversation_tokens)
        versions.on_retired = self.conversations.retire
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
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def ready(self) -> bool:
        """True when a version is loaded and the server is not stopping."""
        return self.versions.current is not None and not self.draining

    def begin(self, request: ChatRequest, caller: Caller) -> Exchange:
        """Admit a request; raises `APIError` for one that cannot be answered, 503 where the server is full.

        The request takes its room from here on: its handler has to leave its hold.
        """
        self.version_of(request.model)
        last = self.conversations.last_turn(request.conversation, caller.key_hash)
        messages = request.to_messages(() if last is None else last.call_ids)
        place, tools = self._place(request, caller, messages, last)
        version = self.version_of(request.model) if place.before is None else place.before.served_by
        if own := {tool.name for tool in tools} & {tool.name for tool in version.served.agent.tools}:
            raise invalid_request(f"tool {min(own)} is one of the agent's own", param="tools")
        exchange = Exchange(self, request, caller, version, place, tools)
        self.counts.joined[place.joined] += 1
        return exchange

    def _place(
        self, request: ChatRequest, caller: Caller, messages: tuple[Message, ...], last: AnsweredTurn | None
    ) -> tuple[Continuation, tuple[Tool, ...]]:
        """Place of the messages, and the tools of the conversation: the client's, or those of its version."""
        if request.tools is not None:
            choices = [request.to_tools()]
        elif last is not None:
            choices = [last.tools]
        else:
            choices = [version.served.tools for version in reversed(self.versions.loaded)]
        places = []
        for tools in choices:
            place = self.conversations.find(
                messages,
                conversation_id=request.conversation,
                owner=caller.key_hash,
                user=request.user,
                tools=tools,
                calls=request.call_ids,
            )
            places.append((place, tools))
            if place.joined != "unknown prefix":
                return places[-1]
        return places[0]

    def version_of(self, model: str) -> ServedVersion:
        """Version that answers new conversations with a model; raises `APIError`."""
        current = self.versions.current
        if current is None or self.draining:
            self._refuse("not ready", "the server is starting or stopping", retry_after_s=2.0)
        if model in (current.served.model, f"{current.served.model}@champion"):
            return current
        for version in self.versions.loaded:
            if model == version.served.version:
                if version.stopped is not None:
                    self._refuse("not ready", "the version is loaded again", retry_after_s=2.0)
                return version
        message = f"no model {model!r}; this server has {current.served.model}"
        raise APIError(404, message, param="model", code="model_not_found")

    def admit(self, version: ServedVersion, requests: int, tokens: int, before: AnsweredTurn | None = None) -> Hold:
        """Take room for so many turns and tokens; raises `APIError` 503 where the server has none.

        `before` is the turn that goes on: another request with the id of its conversation is refused meanwhile.
        """
        most = self.settings
        if requests > most.max_requests or tokens > most.max_tokens:
            raise invalid_request(
                f"{requests} turns of {tokens} tokens in all are more than this server takes at once, "
                f"{most.max_requests} and {most.max_tokens}; lower n or max_tokens",
                param="n" if requests > most.max_requests else "max_tokens",
            )
        if self.requests + requests > most.max_requests:
            self._refuse("requests", "too many requests are in progress", retry_after_s=self._wait_s())
        if self.tokens + tokens > most.max_tokens:
            self._refuse("tokens", "too many tokens are in progress", retry_after_s=self._wait_s())

        def change(sign: int) -> None:
            self.requests += sign * requests
            self.tokens += sign * tokens
            version.running += sign * requests
            version.last_used = time.monotonic()
            if before is not None:
                before.in_progress += sign

        change(1)
        return Hold(self._tasks, lambda: change(-1))

    def check_room(self) -> None:
        """Raise `APIError` 503 where no further turn has room."""
        if self.requests >= self.settings.max_requests:
            self._refuse("requests", "too many requests are in progress", retry_after_s=self._wait_s())

    def drain(self) -> None:
        """Admit no more requests; callable from a signal's handler."""
        self.draining = True
        self.hub.publish("server.draining")

    def count_error(self) -> None:
        """Count a turn that ended by an error of agent, engine or model."""
        self.counts.errors += 1

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

    async def record(self, turn: ServedTurn, usage: Usage, times: Sequence[float]) -> None:
        """Log a turn, whose tokens were sampled at these monotonic times; raises as the log."""
        try:
            await self.log.append(turn)
        except BaseException:
            self.counts.unlogged += 1
            raise
        self.counts.turns[turn.status] += 1
        self._turn_s += _RATE_WEIGHT * (turn.latency_s - self._turn_s)
        self._observe(turn, usage, times)
