"""One request in progress: its place in a conversation, and the choices that are generated and logged.

place ─► session of the engine ─► agent ─► tokens, as they are sampled ─► deltas
                                    └► reply ─► log (durable) ─► end
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from grpo.agents.reasoning import stable_prefix
from grpo.agents.transcript import ContextLengthExceeded, Reply, TokenTranscript
from grpo.config.serving import ServiceSettings
from grpo.errors import GRPOError, PolicyError, StorageError
from grpo.log.records import CONSTRAINED, ServedTurn, TurnStatus
from grpo.messages import Tool
from grpo.policy.policy import Sampling, Session
from grpo.renderers.chat_template import Renderer
from grpo.renderers.reply_format import Progress
from grpo.serving.access.callers import Caller
from grpo.serving.access.preparation import Preparation
from grpo.serving.engine.versions import ServedVersion
from grpo.serving.protocol.api_errors import APIError, erased_error, invalid_request
from grpo.serving.protocol.chat_request import ChatRequest
from grpo.serving.protocol.chat_response import Choice, Completion, FinishReason, Usage
from grpo.serving.requests.admission import Admission
from grpo.serving.requests.answered_turns import AnsweredTurn, Continuation
from grpo.serving.requests.constraints import Constraint
from grpo.serving.requests.conversations import Conversations
from grpo.serving.requests.reply_events import Delta, Ended, Event
from grpo.serving.requests.token_stream import TokenStream
from grpo.serving.requests.turn_log import TurnLog
from grpo.user_failures import describe, guard_tasks, is_exception, user_code

logger = logging.getLogger(__name__)
_Events: TypeAlias = "asyncio.Queue[Event | BaseException]"
_OWN_REPLIES = "is not supported for this agent, because it reasons, or has a process_turn of its own"
_SILENCE_S = 15.0
"""If a stream was silent for this time, it gets a comment, because proxies cut idle connections."""


class TurnService(Protocol):
    """Parts of the service that a handler uses."""

    settings: ServiceSettings
    conversations: Conversations
    preparation: Preparation
    log: TurnLog
    now: Callable[[], datetime]

    def admit(
        self, version: ServedVersion, requests: int, tokens: int, *, place: Continuation, owner: str
    ) -> Admission:
        """Reserve capacity for this many requests and tokens. Raises `APIError` if there is none."""
        ...

    def count_error(self) -> None:
        """Count a turn that ended with an error of the agent, engine or model."""
        ...

    async def record(self, turn: ServedTurn, usage: Usage, times: Sequence[float]) -> None:
        """Log a turn, and return when it is durable."""
        ...

    async def remember(self, turn: AnsweredTurn, place: Continuation, admission: Admission, *, is_last: bool) -> None:
        """Keep an answered turn, so that its conversation can go on. Raises `APIError` if it cannot be kept."""
        ...


class ChatHandler:
    """One request in progress: its place in a conversation, and the choices that are generated.

    `needed` is the number of tokens of the conversation with its new messages, as `renderer` renders them.
    """

    def __init__(
        self,
        service: TurnService,
        request: ChatRequest,
        caller: Caller,
        version: ServedVersion,
        place: Continuation,
        tools: tuple[Tool, ...],
        renderer: Renderer,
        needed: int,
        constraint: Constraint | None = None,
    ) -> None:
        served = version.served
        self.version, self.choices = version, request.n
        self._service, self.request, self._caller, self.place, self._tools = service, request, caller, place, tools
        self._id = service.log.ids.new_turn(place.conversation_id)
        self._received, self._started = service.now(), time.monotonic()
        self._prepare = service.preparation.admitted(caller.key_hash, request.characters)
        self._renderer, self._constraint = renderer, constraint
        self._seed = secrets.randbits(63) if (seed := request.to_seed()) is None else seed
        self._new = place.to_read(served.system_prompt)
        self._refuse_unread()
        limit = request.max_reply_tokens
        if limit is not None and limit > version.max_context:
            message = f"a reply of {limit} tokens is more than the context of {version.max_context}"
            raise invalid_request(message, param="max_tokens", code="context_length_exceeded")
        self._fit_reply, self._max_new_tokens = limit is None, limit or served.max_new_tokens
        self.max_tokens = request.n * (needed + self._max_new_tokens)
        """Most tokens that the request may need."""
        self.admission = service.admit(version, request.n, self.max_tokens, place=place, owner=caller.key_hash)
        """Admission for this request. The route must call `admission.release()`, also when the request fails."""
        self.admission.conversation_id, self.admission.user = place.conversation_id, request.user
        self.completion = Completion(
            id=f"chatcmpl-{self._id}",
            created=int(self._received.timestamp()),
            model=request.model,
            conversation_id=place.conversation_id,
            fingerprint=f"{served.version}-{served.policy.hash}",
        )

    async def events(self) -> AsyncGenerator[Event | None]:
        """Generate all choices. If the iterator is closed, the choices in progress are aborted.

        The end of a choice is sent only after the choice is in the log. None stands for an interval of silence. Raises
        `APIError` if the conversation leaves no room for a reply, and passes on the errors of agent, engine and log.
        """
        queue: _Events = asyncio.Queue()
        tasks = [self.admission.generate(self._choose(index, queue)) for index in range(self.choices)]
        ended = 0
        try:
            await asyncio.sleep(0)  # let all begin: a task that is cancelled before it begins leaves no line in the log
            while ended < len(tasks):
                try:
                    async with asyncio.timeout(_SILENCE_S):
                        event = await queue.get()
                except TimeoutError:
                    yield None
                    continue
                if isinstance(event, BaseException):
                    raise event
                ended += isinstance(event, Ended)
                yield event
        finally:
            for task in tasks:
                task.cancel()  # it logs its turn by itself, because this block may be cancelled at any await

    def _refuse_unread(self) -> None:
        """Raise `APIError` if a parameter would have no effect with this agent."""
        agent, before, strategy = self.version.served.agent, self.place.before, self.request.strategy
        if before is not None and strategy is not None and strategy != before.strategy:
            message = f"the conversation began with strategy {before.strategy}. Start another one for {strategy}"
            raise invalid_request(message, param="strategy", code="unsupported_value")
        if self.request.calls_nothing and type(self._renderer) is not Renderer:
            message = (
                "tool_choice none is not supported for this model, because a custom renderer or another server parses "
                "calls"
            )
            raise invalid_request(message, param="tool_choice", code="unsupported_value")
        if self.request.stops and (agent.overrides_replies or agent.config.enable_reasoning or self._renderer.reasons):
            raise invalid_request(f"stop {_OWN_REPLIES}", param="stop", code="unsupported_value")
        asks = self.request.must_call or self.request.has_format
        if self._constraint is not None and asks and (agent.overrides_replies or agent.config.enable_reasoning):
            param = "tool_choice" if self.request.must_call else "response_format"
            raise invalid_request(f"{param} {_OWN_REPLIES}", param=param, code="unsupported_value")

    async def _choose(self, index: int, queue: _Events) -> None:
        """Generate one choice, and put its events, or its error, into the queue.

        After the generation, the turn is logged in a separate task, which completes even if the client goes away.
        """
        stream = TokenStream(self._renderer, self.request.stops)
        transcript: TokenTranscript | None = None
        try:
            session = await self.version.open(self._renderer)
            try:
                transcript = self._transcript(session, self._sampling(index), stream)
                watcher = asyncio.create_task(self._stream(index, stream, queue))
                try:
                    reply = await self._respond(transcript)
                finally:
                    watcher.cancel()
                    (failure,) = await asyncio.gather(watcher, return_exceptions=True)
                    if isinstance(failure, Exception):  # its client gets the text with the end of the reply
                        logger.error("a reply was not streamed while it was generated", exc_info=failure)
            finally:
                session.close()
            with user_code("the renderer", passes=is_exception):
                choice = self._choice(index, reply, stream)
        except asyncio.CancelledError:
            if self.admission.erased:
                await asyncio.shield(self.admission.start(self._end_erased(index, stream, queue)))
                return
            self.admission.start(self._log_unanswered(index, transcript, stream, "aborted", "the client went away"))
            raise
        except Exception as error:
            if not isinstance(error, APIError):
                self._service.count_error()
            reason = error.message if isinstance(error, APIError) else describe(error, with_place=False)
            await asyncio.shield(
                self.admission.start(self._log_unanswered(index, transcript, stream, "failed", reason))
            )
            queue.put_nowait(error)
            return
        await asyncio.shield(self.admission.start(self._end(choice, transcript, stream, queue)))

    async def _respond(self, transcript: TokenTranscript) -> Reply:
        """Reply of the agent. Raises `APIError` if the conversation leaves no room for it."""
        try:
            guard_tasks()
            with user_code("the agent", passes=is_exception):
                return await self.version.served.agent.respond(transcript, self._new, self._context)
        except ContextLengthExceeded as error:
            message = f"{error.counts}. Shorten the messages, or lower max_tokens"
            raise invalid_request(message, param="messages", code="context_length_exceeded") from error

    @property
    def _context(self) -> dict[str, str | None]:
        """Context of the agent. The user's id includes the key, because two keys may have users with the same name."""
        user = f"{self._caller.key_hash}/{self.request.user or ''}"
        return {"user_id": user, "strategy": self.request.strategy}

    def _transcript(self, session: Session, sampling: Sampling, stream: TokenStream) -> TokenTranscript:
        before = self.place.before
        if before is not None:
            transcript = before.tokens.resume(session, sampling, on_token=stream, fit_reply=self._fit_reply)
        else:
            limit = self.version.max_context
            transcript = TokenTranscript(
                session, self._renderer, sampling, max_context=limit, on_token=stream, fit_reply=self._fit_reply
            )
        transcript.encode_elsewhere = self._prepare
        transcript.parses_calls = self._parses_calls
        return transcript

    def _sampling(self, index: int) -> Sampling:
        return self.request.to_sampling(
            index,
            temperature=self.version.served.temperature,
            max_new_tokens=self._max_new_tokens,
            seed=self._seed,
            top_logprobs=self.request.top_logprobs or 0,
            grammar=None if self._constraint is None else self._constraint.grammar,
            completes=self._constraint is not None and self._constraint.completes,
        )

    @property
    def _parses_calls(self) -> bool:
        """False if calls are left in the content, because nothing was offered to be called."""
        return not self.request.calls_nothing and bool(self._renderer.tools)

    async def _stream(self, index: int, stream: TokenStream, queue: _Events) -> None:
        """Send text as soon as it is settled, if neither the agent nor the renderer changes sampled replies."""
        agent = self.version.served.agent
        if not self.request.stream or agent.overrides_replies or type(self._renderer) is not Renderer:
            return
        progress = Progress()
        while True:
            await stream.wait()
            text = stream.settled()
            if agent.config.enable_reasoning:
                text = stable_prefix(text, reasoning=True)
            text = self._renderer.settled_content(text, progress)
            if len(text) > len(stream.sent):
                logprobs = stream.take() if self.request.logprobs else None
                queue.put_nowait(Delta(index=index, text=text[len(stream.sent) :], logprobs=logprobs))
                stream.sent = text
                await asyncio.sleep(self._service.settings.stream_interval_s)

    def _choice(self, index: int, reply: Reply, stream: TokenStream) -> Choice:
        """Reply as the client reads it, cut before the stop text that ended it, if there is one."""
        message, stopped = reply.message, stream.stopped_text
        if stopped is not None and reply.as_sampled:
            message = self._renderer.parse_text(stopped)
        if not self._parses_calls and message.tool_calls:  # they come from the text that was parsed again above
            message = replace(message, content=(reply.text if stopped is None else stopped).strip(), tool_calls=())
        finish: FinishReason = "tool_calls" if message.tool_calls else "length" if reply.length_limited else "stop"
        if not message.content.startswith(stream.sent):
            raise PolicyError(f"the streamed text {stream.sent[-40:]!r} is not the beginning of the reply")
        logprobs = stream.logprobs() if self.request.logprobs else None
        turn_id = self._turn_id(index)
        return Choice(index=index, message=message, finish_reason=finish, turn_id=turn_id, logprobs=logprobs)

    async def _end(self, choice: Choice, transcript: TokenTranscript, stream: TokenStream, queue: _Events) -> None:
        """Log the answered turn, then remember it and send its end."""
        if self.admission.erased:
            return await self._end_erased(choice.index, stream, queue)
        place, usage = self.place, self._usage(transcript)
        self.admission.used_tokens += usage.prompt + usage.completion
        try:
            answer = partial(
                AnsweredTurn,
                turn_id=choice.turn_id,
                conversation_id=place.conversation_id,
                owner=self._caller.key_hash,
                user=self.request.user,
                version=self.version,
                tools=self._tools,
                messages=(*place.history, replace(choice.message, reasoning=None, malformed=None)),
                transcript=transcript,
                earlier_calls=self.request.call_ids.union(place.before.calls if place.before is not None else ()),
                strategy=self.request.strategy if place.before is None else place.before.strategy,
            )
            answered = await self._prepare(place.characters, answer)
            turn = self._record(choice.index, transcript, stream, "answered", choice.finish_reason)
            visible = replace(turn.turns[-1], message=choice.message)
            await self._service.record(replace(turn, turns=(*turn.turns[:-1], visible)), usage, stream.times)
            if self.admission.erased:  # it was erased while it was written: the erasure has removed it or is about to
                raise erased_error()
            transcript.release()
            await self._service.remember(answered, place, self.admission, is_last=choice.index == 0)
        except Exception as error:
            if not isinstance(error, StorageError | APIError):
                await self._log_unanswered(choice.index, None, stream, "failed", describe(error, with_place=False))
            queue.put_nowait(error)
            return
        rest = stream.take() if self.request.logprobs else None
        queue.put_nowait(Ended(choice=choice, sent=stream.sent, rest=rest, usage=usage))
        try:
            with user_code("the agent's memory", passes=is_exception):
                self.version.served.agent.remember(self._new[-1], choice.message.content, self._context)
        except Exception:
            logger.exception("the agent did not remember turn %s, which is answered", choice.turn_id)

    async def _end_erased(self, index: int, stream: TokenStream, queue: _Events) -> None:
        """Log that a turn was erased while it ran, without its content, and tell the client."""
        await self._log_unanswered(index, None, stream, "erased", "erased while it ran")
        queue.put_nowait(erased_error())

    async def _log_unanswered(
        self, index: int, transcript: TokenTranscript | None, stream: TokenStream, status: TurnStatus, reason: str
    ) -> None:
        """Log a turn without a reply. If the log fails, the error is reported, and the turn counts as unlogged."""
        read = 0 if transcript is None or not stream.tokens else len(transcript.ids)
        if status != "failed" or transcript is not None:
            self.admission.used_tokens += read + len(stream.tokens)
        try:
            turn = self._record(index, transcript, stream, status, reason)
            await self._service.record(turn, Usage(prompt=0, completion=len(stream.tokens)), stream.times)
        except GRPOError as error:
            logger.error("turn %s was not logged: %s", self._turn_id(index), error)

    def _record(
        self, index: int, transcript: TokenTranscript | None, stream: TokenStream, status: TurnStatus, reason: str
    ) -> ServedTurn:
        """Record of the turn, with what the transcript has added since the turn before."""
        place, served, sampling = self.place, self.version.served, self._sampling(index)
        before = place.before.tokens if place.before is not None else None
        known = len(before.ids) if before is not None else 0
        ids, mask, logprobs, turns = ([], [], [], ()) if transcript is None else (
            transcript.ids[known:], transcript.mask[known:], transcript.logprobs[known:],
            tuple(transcript.turns[len(before.turns) if before is not None else 0 :]),
        )  # fmt: skip
        settings, erased = self._service.settings, status == "erased"
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
            tools=() if erased else tuple(tool.to_template()["function"] for tool in self._tools),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            choice=index,
            first_token_s=stream.times[0] - self._started if stream.times else None,
            latency_s=time.monotonic() - self._started,
            key=self._caller.key_hash,
            user="" if self.request.user is None or erased else self._service.log.user_hash(self.request.user),
            consent=settings.consent if self.request.store else "",
            licence=settings.licence,
            metadata={} if erased else {**self.request.labels, **self._constrained},
        )

    @property
    def _constrained(self) -> dict[str, str]:
        return {} if self._constraint is None else {CONSTRAINED: self._constraint.kind}

    def _usage(self, transcript: TokenTranscript) -> Usage:
        """Tokens of the choice. Only cached tokens of its own conversation count, because its owner knows these."""
        known = self.place.before.size if self.place.before is not None else 0
        sampled = sum(transcript.mask[known:])
        cached = min(transcript.cached_tokens, known)
        return Usage(prompt=len(transcript.ids) - sampled, completion=sampled, cached=cached)

    def _turn_id(self, index: int) -> str:
        return f"{self._id}-{index}" if index else self._id
