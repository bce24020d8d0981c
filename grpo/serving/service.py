"""Answers to requests: joins them to conversations, generates with the agent, and logs each turn before its end.

    request ─► lengths ─► conversation ─► tokens counted ─► admission ─► agent ─► engine
                                                                           │ tokens, as they are sampled
    response ◄── end ◄── log (durable) ◄────────────────────────────────── reply

What cannot fit is refused by its lengths. Texts are parsed, counted and rendered by `Preparation`, not on the event
loop.
Every turn that was admitted is logged once, answered or not, with its reason.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID
from weakref import WeakKeyDictionary

from grpo.messages import Tool, count_calls
from grpo.renderers.chat_template import Renderer
from grpo.scenarios.served.folder import name_digest
from grpo.scenarios.served.records import Erasure, ServedTurn
from grpo.serving.api_errors import APIError, erased_error, invalid_request, is_api_error, overloaded
from grpo.serving.asked import Asked
from grpo.serving.chat_request import ChatRequest
from grpo.serving.chat_response import Usage
from grpo.serving.constraints import Constraints, constraint_of
from grpo.serving.conversations import AnsweredTurn, Continuation, Conversations
from grpo.serving.counts import Counts
from grpo.serving.exchange import Exchange
from grpo.serving.hold import Hold
from grpo.serving.places import Places
from grpo.serving.preparation import AT_ONCE, Preparation
from grpo.serving.prompt_sizes import (
    PromptSize,
    check_chat_size,
    check_later_system,
    check_tools_size,
    check_without_user,
    count_tokens,
)
from grpo.serving.settings import ServiceSettings
from grpo.serving.turn_log import TurnLog
from grpo.serving.turn_store import TurnStore
from grpo.serving.versions import ServedVersion, Versions
from grpo.user_failures import user_code

if TYPE_CHECKING:
    from grpo.serving.callers import Caller

_RATE_WEIGHT = 0.1
"""Weight of the newest turn in the mean duration of a turn."""


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
        self.conversations = Conversations(
            max_tokens=self.settings.conversation_tokens, new_id=lambda owner: log.ids.new_conversation(owner)
        )
        versions.on_retired = self.conversations.retire
        self.places = Places(self.conversations, versions, self.version_of)
        self.counts = Counts()
        self.hub = versions.hub
        self.waiting_frames: Counter[str] = Counter()
        """Characters of the WebSocket frames of each key that wait to be read."""
        self.streaming = 0
        """Replies that go out over WebSockets."""
        self.draining = False
        self.failure: BaseException | None = None
        """Why the server ends by itself."""
        self.on_failure: Callable[[], None] = lambda: None
        self.requests = 0
        """Turns in progress and waiting, and requests that are read."""
        self.tokens = 0
        """Tokens of their conversations and replies."""
        self.log = log
        self.now = now
        self.preparation = Preparation(waiting_characters=self.settings.waiting_characters)
        self.constraints = Constraints()
        self._sizes: WeakKeyDictionary[ServedVersion, PromptSize] = WeakKeyDictionary()
        self._observe = observe
        self._turn_s = 1.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._holds: set[Hold] = set()
        """Requests in progress."""

    @property
    def turns(self) -> TurnStore:
        """Store of answered turns that servers share."""
        return self.places.turns

    @property
    def ready(self) -> bool:
        """True when a version and its engine answer, a shared database does as well, and the server is not stopping."""
        return self.status == "ready"

    @property
    def status(self) -> str:
        """`ready`, or why the server is not."""
        current = self.versions.current
        if self.draining:
            return "draining"
        if current is None:
            return "loading"
        if not current.answers:
            return "the engine does not answer"
        return "ready" if self.turns.away is None else "the database that the servers share does not answer"

    @property
    def max_context(self) -> int:
        """Tokens of the largest context that is loaded."""
        return max((version.max_context for version in self.versions.loaded), default=0)

    async def begin(self, request: ChatRequest, caller: Caller) -> Exchange:
        """Admit a request; raises `APIError` for one that cannot be answered, 503 if the server is full.

        From then on the request counts toward `max_requests` and `max_tokens`. The route must call `leave()` of the
        exchange's `hold`, also when the request fails, because the server is full for others until then.
        """
        with self.preparing():
            exchange_of, lease = await self._prepare(request, caller)
        try:
            exchange = exchange_of()
        except BaseException:
            self.turns.release(lease)
            raise
        exchange.hold.lease = lease
        self.counts.joined[exchange.place.joined] += 1
        return exchange

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Count a request among those in progress while it is read; raises `APIError` 503 on a full server."""
        self.check_room()
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    async def _prepare(self, request: ChatRequest, caller: Caller) -> tuple[Callable[[], Exchange], UUID | None]:
        """Read a request and find its place; returns the function that admits it, and the lease on its place."""
        self.version_of(request.model)
        check_chat_size(request, [await self.size_of(version) for version in self.versions.loaded])
        characters = request.characters
        last = await self.places.load_before(request, caller)
        read = partial(Asked.of, request, () if last is None else last.call_ids)
        asked = read() if characters <= AT_ONCE else await self.preparation.run(caller.key_hash, characters, read)
        loaded = await self.places.load(request, caller, asked)
        place, tools = self.places.find(request, caller, asked, loaded)
        while True:
            version = self.version_of(request.model) if place.before is None else place.before.served_by
            if own := {tool.name for tool in tools.tools} & {tool.name for tool in version.served.agent.tools}:
                raise invalid_request(f"tool {min(own)} is one of the agent's own", param="tools")
            self._refuse_silent(version)
            count = partial(self._count, version, place, tools.tools, await self.size_of(version))
            renderer, needed = await self.preparation.run(caller.key_hash, characters, count)
            counted, counted_tools = place, tools
            place, tools = self.places.find(request, caller, asked, loaded)  # others may have gone on since
            same = place.before is counted.before and len(place.new) == len(counted.new)
            same = same and tools.digest == counted_tools.digest  # a version with others may have been loaded
            if not same or not self._is_answering(version, place, request):
                continue
            constraint = constraint_of(request, tools.tools, renderer)
            if constraint is not None:
                await self.constraints.check(constraint, version, renderer)
                if not self._is_answering(version, place, request):
                    continue
            begun = await self.turns.begin(place, caller.key_hash, by_id=request.conversation is not None)
            if begun is not None and self._is_answering(version, place, request):
                exchange_of = partial(
                    Exchange, self, request, caller, version, begun.place, tools.tools, renderer, needed, constraint
                )
                return exchange_of, begun.lease
            if begun is not None:
                self.turns.release(begun.lease)
            loaded = await self.places.load(request, caller, asked)
            place, tools = self.places.find(request, caller, asked, loaded)

    def _is_answering(self, version: ServedVersion, place: Continuation, request: ChatRequest) -> bool:
        """True while a version has not been retired, or been followed by the one for new conversations."""
        return not version.retired and (place.before is not None or version is self.version_of(request.model))

    async def size_of(self, version: ServedVersion) -> PromptSize:
        """Most that the context of a version can hold; reading its vocabulary takes a moment, once."""
        size = self._sizes.get(version)
        if size is None:
            size = self._sizes[version] = await self.preparation.run("", 0, partial(PromptSize, version), admitted=True)
        return size

    def _count(
        self, version: ServedVersion, place: Continuation, tools: tuple[Tool, ...], size: PromptSize
    ) -> tuple[Renderer, int]:
        """Renderer of a conversation, and its tokens with the tools and the new messages; on a thread."""
        before = place.before
        transcript = None if before is None else before.transcript
        fits, most = size.tokens is not None, min(size.most, self.settings.max_tokens)
        with user_code("the renderer", passes=is_api_error):
            if transcript is None:
                check_tools_size(tools, size, version.renderer(()), most=most)
                renderer = version.renderer(tools)
                known = version.tool_tokens(renderer) if tools else 0
            else:
                renderer, known = transcript.renderer, len(transcript.ids)
            new = place.to_read(version.served.system_prompt)
            if any(message.role == "system" for message in (new if before is not None else new[1:])):
                check_later_system(renderer)
            if before is None and all(message.role != "user" for message in new):
                check_without_user(renderer)
            return renderer, known + count_tokens(renderer, new, known=known, most=most, fits=fits)

    def version_of(self, model: str) -> ServedVersion:
        """Version that answers new conversations with a model; raises `APIError`."""
        current = self.versions.current
        if current is None or self.draining:
            self._refuse("not ready", "the server is starting or stopping", retry_after_s=2.0)
        if model in (current.served.model, f"{current.served.model}@champion"):
            self._refuse_silent(current)
            return current
        for version in self.versions.loaded:
            if model == version.served.version:
                if version.stopped is not None:
                    self._refuse("not ready", "the version is being reloaded", retry_after_s=2.0)
                return version
        message = f"no model {model!r}; this server has {current.served.model}"
        raise APIError(404, message, param="model", code="model_not_found")

    def _refuse_silent(self, version: ServedVersion) -> None:
        """Raise `APIError` 503 for a version whose engine process is stopped: its turns would hang."""
        if not version.answers:
            self._refuse("not ready", "the engine does not answer", retry_after_s=2.0)

    def admit(self, version: ServedVersion, requests: int, tokens: int, before: AnsweredTurn | None = None) -> Hold:
        """Take room for so many turns and tokens; raises `APIError` 503 where the server has none.

        `before` is the turn that goes on: another request with the id of its conversation is refused until it ends.
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

        def release(hold: Hold) -> None:
            change(-1)
            self.turns.release(hold.lease)
            self._holds.discard(hold)

        change(1)
        hold = Hold(self._tasks, release, begun=self.now())
        self._holds.add(hold)
        return hold

    def forget(self, erasure: Erasure) -> int:
        """End the turns in progress of an erasure, and forget its conversations; returns the number of turns.

        Each ended turn is in the log as erased, and its client gets 410.
        """
        ended = sum(hold.erase() for hold in tuple(self._holds) if self._is_erased(hold, erasure))
        self.conversations.erase(lambda turn: self._is_subject(turn.conversation_id, turn.user, erasure))
        self.turns.forget_later(erasure)
        for version in self.versions.loaded:
            version.served.agent.forget(lambda caller: self._is_remembered(caller, erasure))
        return ended

    def _is_erased(self, hold: Hold, erasure: Erasure) -> bool:
        return hold.begun <= erasure.time and self._is_subject(hold.conversation_id, hold.user, erasure)

    def _is_subject(self, conversation_id: str, user: str | None, erasure: Erasure) -> bool:
        by_user = bool(user) and name_digest(self.log.user_hash(str(user))) in erasure.users
        return by_user or name_digest(conversation_id) in erasure.conversations

    def _is_remembered(self, caller: str, erasure: Erasure) -> bool:
        """True for a caller of an agent's memory, key hash and user as `Exchange` names it, of an erased turn."""
        key, _, user = caller.partition("/")
        hashed = self.log.user_hash(user) if user else ""
        return name_digest(f"{key}/{hashed}") in erasure.callers or (
            bool(user) and name_digest(hashed) in erasure.users
        )

    async def remember(self, turn: AnsweredTurn, place: Continuation, hold: Hold, *, is_last: bool) -> None:
        """Keep an answered turn, from which its conversation goes on; raises `APIError` where it is not kept."""
        try:
            await self.turns.commit(turn, place, hold.lease, is_last=is_last)
        except APIError:
            self.counts.unshared += 1
            raise
        if hold.erased:  # while it was written
            self.turns.forget_later(self._erasure_of(turn))
            raise erased_error()
        if place.before is not None:
            place.before.successors += 1
        self.conversations.add(turn, is_last=is_last)

    def _erasure_of(self, turn: AnsweredTurn) -> Erasure:
        return Erasure(time=self.now(), users=frozenset(), conversations=frozenset([name_digest(turn.conversation_id)]))

    def check_room(self) -> None:
        """Raise `APIError` 503 where no further turn has room."""
        if self.requests >= self.settings.max_requests:
            self._refuse("requests", "too many requests are in progress", retry_after_s=self._wait_s())

    def drain(self) -> None:
        """Admit no more requests; callable from a signal's handler."""
        self.draining = True
        self.hub.publish("server.draining")

    def fail(self, error: BaseException) -> None:
        """End the server, which cannot do its work."""
        self.failure = self.failure or error
        self.drain()
        self.on_failure()

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
        if turn.status == "answered":
            self.counts.calls.update(count_calls([turn.turns[-1].message]))
        if turn.parent is None and turn.status in ("aborted", "failed") and not turn.is_completion:
            self.conversations.keep_open(turn.conversation_id, turn.key)
        self._turn_s += _RATE_WEIGHT * (turn.latency_s - self._turn_s)
        self._observe(turn, usage, times)
