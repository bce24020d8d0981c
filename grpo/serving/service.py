"""Answers to requests: joins them to conversations, generates with the agent, and logs each turn before its end.

    request ─► admission ─► conversation ─► agent ─► engine
                                              │ tokens, as they are sampled
    response ◄── end ◄── log (durable) ◄── reply

Every turn that was admitted is logged once, answered or not, with its reason.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
from tokenizers.decoders import DecodeStream

from grpo.agents.reasoning import stable_prefix
from grpo.agents.transcript import ContextLengthExceeded, Reply, TokenTranscript
from grpo.errors import GRPOError, PolicyError
from grpo.messages import Message, Tool
from grpo.policy.policy import SampledToken, Sampling, Session
from grpo.renderers.chat_template import Renderer
from grpo.scenarios.served.records import Record, ServedTurn, TurnStatus
from grpo.serving.api_errors import APIError, invalid_request, overloaded
from grpo.serving.chat_request import ChatRequest
from grpo.serving.chat_response import Choice, Completion, FinishReason, TokenLogprob, Usage
from grpo.serving.conversations import AnsweredTurn, Continuation, Conversations
from grpo.serving.versions import ServedVersion, Versions

if TYPE_CHECKING:
    from grpo.serving.callers import Caller

logger = logging.getLogger(__name__)
_RATE_WEIGHT = 0.1
"""Weight of the newest turn in the mean duration of a turn."""


class TurnLog(Protocol):
    """Log of turns, see `grpo.serving.log`."""

    async def append(self, record: Record) -> None:
        """Return when the record is durable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Limits of the server as a whole, and what the log states of every turn."""

    max_requests: int = 256
    """Turns in progress and waiting."""
    max_tokens: int = 1_000_000
    """Tokens of their conversations and replies."""
    conversation_tokens: int = 2_000_000
    """Tokens of the conversations in memory."""
    consent: str = ""
    """Uses that users agreed to, such as `training`; empty for none."""
    licence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Text of a choice that no further token changes, and the log-probabilities of the tokens up to it."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """End of a choice, which is in the log."""

    choice: Choice
    sent: str
    """Content that its deltas had."""
    rest: tuple[TokenLogprob, ...] | None
    """Log-probabilities that no delta had."""
    usage: Usage


Event = Delta | Ended


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
        version = self.versions.current
        if version is None or self.draining:
            self._refuse("not ready", "the server is starting or stopping", retry_after_s=2.0)
        served = version.served
        if request.model not in (served.model, served.version, f"{served.model}@champion"):
            message = f"no model {request.model!r}; this server has {served.model}"
            raise APIError(404, message, param="model", code="model_not_found")
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
        if self.requests + request.n > self.settings.max_requests:
            self._refuse("requests", "too many requests are in progress", retry_after_s=self._wait_s())
        if self.tokens + exchange.max_tokens > self.settings.max_tokens:
            self._refuse("tokens", "too many tokens are in progress", retry_after_s=self._wait_s())
        self.counts.joined[continuation.joined] += 1
        return exchange

    def start(self, exchange: Exchange, choice: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
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


class Exchange:
    """One request in progress: its place in a conversation, and the choices that are generated."""

    def __init__(
        self,
        service: Service,
        request: ChatRequest,
        caller: Caller,
        version: ServedVersion,
        place: Continuation,
        tools: tuple[Tool, ...],
    ) -> None:
        served, before = version.served, place.before
        self.version, self.choices = version, request.n
        self._service, self._request, self._caller, self._place, self._tools = service, request, caller, place, tools
        self._id, self._received, self._started = uuid.uuid4().hex, service.now(), time.monotonic()
        self._renderer = before.transcript.renderer if before is not None else version.renderer(tools)
        given = request.to_seed()
        self._seed = secrets.randbits(63) if given is None else given
        self._new = place.new
        if before is None and served.system_prompt and place.new[0].role != "system":
            self._new = (Message(role="system", content=served.system_prompt), *place.new)
        known = len(before.transcript.ids) if before is not None else 0
        room = version.max_context - known - self._renderer.count_tokens(self._new)
        self._open, self._answered = 0, False
        self._max_new_tokens = request.max_reply_tokens or min(served.max_new_tokens, max(1, room))
        self.max_tokens = request.n * (version.max_context - room + self._max_new_tokens)
        """Tokens that the request may need."""
        self.completion = Completion(
            id=f"chatcmpl-{self._id}",
            created=int(self._received.timestamp()),
            model=request.model,
            conversation_id=place.conversation_id,
            fingerprint=f"{served.version}-{served.policy.hash}",
        )

    async def events(self) -> AsyncGenerator[Event]:
        """Generate all choices; each has ended when it is in the log. Closing the iterator aborts those in progress.

        Raises `APIError` for a conversation that leaves no room for a reply, and the errors of agent, engine and log.
        """
        queue: asyncio.Queue[Event | BaseException] = asyncio.Queue()
        tasks = [self._service.start(self, self._choose(index, queue)) for index in range(self._request.n)]
        ended = 0
        try:
            while ended < len(tasks):
                event = await queue.get()
                if isinstance(event, BaseException):
                    raise event
                ended += isinstance(event, Ended)
                yield event
        finally:
            for task in tasks:
                task.cancel()  # it logs its turn by itself: this block may be cancelled at any await

    def hold(self) -> None:
        """Count a choice that begins."""
        self._open += 1
        self.version.running += 1
        if self._place.before is not None:
            self._place.before.continued = True

    def release(self) -> None:
        """Count a choice that has ended; a turn without an answer leaves its conversation as it was."""
        self._open -= 1
        self.version.running -= 1
        self.version.last_used = time.monotonic()
        if self._place.before is not None and not self._open and not self._answered:
            self._place.before.continued = False

    async def _choose(self, index: int, queue: asyncio.Queue[Event | BaseException]) -> None:
        """Generate one choice; its events, or its error, go to the queue."""
        tap = TokenTap(self._renderer, self._request.stops)
        transcript: TokenTranscript | None = None
        status: TurnStatus = "failed"
        reason = ""
        try:
            sampling = self._sampling(index)
            session = await self.version.open(self._renderer)
            try:
                transcript = self._transcript(session, sampling, tap)
                watcher = asyncio.create_task(self._stream(index, tap, queue))
                try:
                    reply = await self._respond(transcript)
                finally:
                    watcher.cancel()
                    await asyncio.gather(watcher, return_exceptions=True)
            finally:
                session.close()
            choice = self._choice(index, reply, tap)
        except asyncio.CancelledError:
            status, reason = "aborted", "the client went away"
            raise
        except APIError as error:
            reason = error.message
            queue.put_nowait(error)
            return
        except BaseException as error:  # noqa: BLE001 - it is raised where the events are read
            reason = f"{type(error).__name__}: {error}"[:300]
            queue.put_nowait(error)
            return
        finally:
            if reason:
                await asyncio.shield(self._log_unanswered(index, transcript, tap, status=status, reason=reason))
        try:
            await asyncio.shield(self._end(choice, transcript, tap))
        except GRPOError as error:
            queue.put_nowait(error)
        else:
            usage = self._usage(transcript)
            rest = tap.take() if self._request.logprobs else None
            queue.put_nowait(Ended(choice=choice, sent=tap.sent, rest=rest, usage=usage))

    async def _respond(self, transcript: TokenTranscript) -> Reply:
        """Reply of the agent; raises `APIError` where the conversation leaves no room for it."""
        context = {"user_id": self._request.user or self._caller.name, "strategy": self._request.strategy}
        try:
            return await self.version.served.agent.respond(transcript, self._new, context)
        except ContextLengthExceeded as error:
            raise invalid_request(str(error), param="messages", code="context_length_exceeded") from error

    def _transcript(self, session: Session, sampling: Sampling, tap: TokenTap) -> TokenTranscript:
        before = self._place.before
        if before is not None:
            return before.transcript.resume(session, sampling, on_token=tap)
        limit = self.version.max_context
        return TokenTranscript(session, self._renderer, sampling, max_context=limit, on_token=tap)

    def _sampling(self, index: int) -> Sampling:
        request, served = self._request, self.version.served
        first = Sampling(
            temperature=served.temperature if request.temperature is None else request.temperature,
            max_new_tokens=self._max_new_tokens,
            seed=self._seed,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_logprobs=request.top_logprobs or 0,
        )
        return replace(first, seed=first.turn_seed(index)) if index else first

    async def _stream(self, index: int, tap: TokenTap, queue: asyncio.Queue[Event | BaseException]) -> None:
        """Send text when it is settled, for an agent whose reply is what its policy samples."""
        agent = self.version.served.agent
        if not self._request.stream or agent.overrides_replies:
            return
        while True:
            await tap.sampled.wait()
            tap.sampled.clear()
            text = tap.settled()
            if agent.config.enable_reasoning:
                text = stable_prefix(text, reasoning=True)
            text = self._renderer.settled_content(text)
            if len(text) > len(tap.sent):
                logprobs = tap.take() if self._request.logprobs else None
                queue.put_nowait(Delta(index=index, text=text[len(tap.sent) :], logprobs=logprobs))
                tap.sent = text

    def _choice(self, index: int, reply: Reply, tap: TokenTap) -> Choice:
        """The reply as the client reads it, cut at a text that ends it."""
        message, stopped = reply.message, tap.stopped_text
        if stopped is not None and reply.as_sampled:
            message = self._renderer.parse_text(stopped)
        finish: FinishReason = "stop"
        if message.tool_calls:
            finish = "tool_calls"
        elif reply.length_limited:
            finish = "length"
        if not message.content.startswith(tap.sent):
            raise PolicyError(f"the streamed text {tap.sent[-40:]!r} is not the beginning of the reply")
        logprobs = tuple(map(tap.to_logprob, tap.tokens)) if self._request.logprobs else None
        turn_id = self._turn_id(index)
        return Choice(index=index, message=message, finish_reason=finish, turn_id=turn_id, logprobs=logprobs)

    async def _end(self, choice: Choice, transcript: TokenTranscript, tap: TokenTap) -> None:
        """Log the answered turn, then remember it."""
        place = self._place
        turn = self._record(choice.index, transcript, tap, "answered", choice.finish_reason)
        visible = replace(turn.turns[-1], message=choice.message)
        await self._service.record(replace(turn, turns=(*turn.turns[:-1], visible)), self._usage(transcript))
        answered = AnsweredTurn(
            turn_id=choice.turn_id,
            conversation_id=place.conversation_id,
            owner=self._caller.name,
            user=self._request.user,
            version=self.version,
            tools=self._tools,
            messages=(*place.history, replace(choice.message, reasoning=None, malformed=None)),
            transcript=transcript,
        )
        self._service.conversations.add(answered, is_last=choice.index == 0)
        self._answered = True

    async def _log_unanswered(
        self, index: int, transcript: TokenTranscript | None, tap: TokenTap, *, status: TurnStatus, reason: str
    ) -> None:
        """Log a turn without a reply; a log that fails is reported, and the turn is counted as unlogged."""
        try:
            turn = self._record(index, transcript, tap, status, reason)
            await self._service.record(turn, Usage(prompt=0, completion=len(tap.tokens)))
        except GRPOError as error:
            logger.error("turn %s was not logged: %s", self._turn_id(index), error)

    def _record(
        self, index: int, transcript: TokenTranscript | None, tap: TokenTap, status: TurnStatus, reason: str
    ) -> ServedTurn:
        """Record of the turn: what the transcript has beyond the turn before."""
        place, served, sampling = self._place, self.version.served, self._sampling(index)
        before = place.before.transcript if place.before is not None else None
        known = len(before.ids) if before is not None else 0
        ids, mask, logprobs, turns = ([], [], [], ()) if transcript is None else (
            transcript.ids[known:], transcript.mask[known:], transcript.logprobs[known:],
            tuple(transcript.turns[len(before.turns) if before is not None else 0 :]),
        )  # fmt: skip
        settings = self._service.settings
        return ServedTurn(
            id=self._turn_id(index),
            request_id=self._id,
            conversation_id=place.conversation_id,
            parent=place.before.turn_id if place.before is not None else None,
            time=self._received,
            status=status,
            reason=reason,
            model=served.version,
            policy_hash=served.policy.hash,
            renderer_hash=self._renderer.hash,
            turns=turns,
            token_ids=np.asarray(ids, np.int32),
            loss_mask=np.asarray(mask, np.bool_),
            sampler_logprobs=np.asarray(logprobs, np.float32),
            tools=tuple(tool.to_template()["function"] for tool in self._tools),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            choice=index,
            first_token_s=None if tap.first is None else tap.first - self._started,
            latency_s=time.monotonic() - self._started,
            key=self._caller.key_hash,
            user="" if self._request.user is None else hashlib.sha256(self._request.user.encode()).hexdigest(),
            consent=settings.consent,
            licence=settings.licence,
            metadata=self._request.labels,
        )

    def _usage(self, transcript: TokenTranscript) -> Usage:
        before = self._place.before
        sampled = sum(transcript.mask[len(before.transcript.ids) if before is not None else 0 :])
        return Usage(prompt=len(transcript.ids) - sampled, completion=sampled, cached=transcript.cached_tokens)

    def _turn_id(self, index: int) -> str:
        return f"{self._id}-{index}" if index else self._id


class TokenTap:
    """Tokens of a turn as the engine samples them, on its thread; ends the turn at a text of `stops`."""

    def __init__(self, renderer: Renderer, stops: tuple[str, ...]) -> None:
        self.tokens: list[SampledToken] = []
        self.text = ""
        self.stopped_text: str | None = None
        """Text before the one that ended the turn."""
        self.first: float | None = None
        """Monotonic time of the first token."""
        self.sent = ""
        """Content that was streamed."""
        self.sampled = asyncio.Event()
        self._renderer, self._stops = renderer, stops
        self._loop = asyncio.get_running_loop()
        self._decoder = DecodeStream(skip_special_tokens=False)
        self._taken = 0
        self._woken = False

    def __call__(self, token: SampledToken) -> bool:
        """Add a token; True ends the turn."""
        if self.first is None:
            self.first = time.monotonic()
        self.tokens.append(token)
        if token.id not in self._renderer.stop_ids:
            self.text += self._decoder.step(self._renderer.tokenizer.backend_tokenizer, token.id) or ""
        ends = [position for stop in self._stops if (position := self.text.find(stop)) >= 0]
        if ends:
            self.stopped_text = self.text[: min(ends)]
        if not self._woken:  # a wake-up for each token would take most of the engine's time
            self._woken = True
            self._loop.call_soon_threadsafe(self._wake)
        return bool(ends)

    def _wake(self) -> None:
        self._woken = False
        self.sampled.set()

    def settled(self) -> str:
        """Text without an end that may become one of `stops`."""
        text = self.text if self.stopped_text is None else self.stopped_text
        if self.stopped_text is not None:
            return text
        held = [size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
        return text[: len(text) - max(held, default=0)]

    def take(self) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of the tokens since the last call."""
        first, self._taken = self._taken, len(self.tokens)
        return tuple(map(self.to_logprob, self.tokens[first : self._taken]))

    def to_logprob(self, token: SampledToken) -> TokenLogprob:
        """Token with its text."""
        decode = self._renderer.tokenizer.decode
        top = tuple((decode([id_]), logprob) for id_, logprob in token.top_logprobs)
        return TokenLogprob(text=decode([token.id]), logprob=token.logprob, top=top)
