"""One request in progress: its place in a conversation, and the choices that are generated and logged.

place ─► session of the engine ─► agent ─► tokens, as they are sampled ─► deltas
                                    └► reply ─► log (durable) ─► end
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

import numpy as np

from grpo.agents.reasoning import stable_prefix
from grpo.agents.transcript import ContextLengthExceeded, Reply, TokenTranscript
from grpo.errors import GRPOError, PolicyError, StorageError
from grpo.messages import Message, Tool
from grpo.policy.policy import Sampling, Session
from grpo.renderers.chat_template import Renderer
from grpo.scenarios.served.records import Record, ServedTurn, TurnStatus
from grpo.serving.api_errors import APIError, invalid_request
from grpo.serving.callers import Caller
from grpo.serving.chat_request import ChatRequest
from grpo.serving.chat_response import Choice, Completion, FinishReason, TokenLogprob, Usage
from grpo.serving.conversations import AnsweredTurn, Continuation, Conversations
from grpo.serving.hold import Hold
from grpo.serving.settings import ServiceSettings
from grpo.serving.token_tap import TokenTap
from grpo.serving.versions import ServedVersion

logger = logging.getLogger(__name__)
_SILENCE_S = 15.0
"""Silence after which a stream gets a comment: proxies cut idle connections."""


class TurnLog(Protocol):
    """Log of turns, see `grpo.serving.log`."""

    async def append(self, record: Record) -> None:
        """Return when the record is durable."""
        ...

    async def erase(self, *, user: str | None = None, conversation_id: str | None = None) -> int:
        """Erase the records of one conversation, or those of a user by the hash of its name; returns their number."""
        ...

    def user_hash(self, name: str) -> str:
        """Hash of a user's name, by which its turns are erased."""
        ...


class Owner(Protocol):
    """Service of an exchange."""

    settings: ServiceSettings
    conversations: Conversations
    log: TurnLog
    now: Callable[[], datetime]

    def admit(self, version: ServedVersion, requests: int, tokens: int, before: AnsweredTurn | None = None) -> Hold:
        """Take room for so many turns and tokens; raises `APIError` where there is none."""
        ...

    def count_error(self) -> None:
        """Count a turn that ended by an error of agent, engine or model."""
        ...

    async def record(self, turn: ServedTurn, usage: Usage, times: Sequence[float]) -> None:
        """Log a turn; returns when it is durable."""
        ...


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


class Exchange:
    """One request in progress: its place in a conversation, and the choices that are generated."""

    def __init__(
        self,
        service: Owner,
        request: ChatRequest,
        caller: Caller,
        version: ServedVersion,
        place: Continuation,
        tools: tuple[Tool, ...],
    ) -> None:
        served, before = version.served, place.before
        self.version = version
        self._service, self._request, self._caller, self._place, self._tools = service, request, caller, place, tools
        self._id, self._received, self._started = uuid.uuid4().hex, service.now(), time.monotonic()
        self._renderer = before.tokens.renderer if before is not None else version.renderer(tools)
        given = request.to_seed()
        self._seed = secrets.randbits(63) if given is None else given
        self._new = place.new if before is not None else _with_system_prompt(served.system_prompt, place.new)
        self._refuse_unread()
        known = before.size if before is not None else 0
        needed = known + self._renderer.count_tokens(self._new)
        limit = request.max_reply_tokens
        if limit is not None and limit > version.max_context:
            message = f"a reply of {limit} tokens is more than the context of {version.max_context}"
            raise invalid_request(message, param="max_tokens", code="context_length_exceeded")
        self._fit_reply, self._max_new_tokens = limit is None, limit or served.max_new_tokens
        self.max_tokens = request.n * (needed + self._max_new_tokens)
        """Tokens that the request may need."""
        self.hold = service.admit(version, request.n, self.max_tokens, before)
        """Room that it takes; its handler leaves it."""
        self.choices = request.n
        self.completion = Completion(
            id=f"chatcmpl-{self._id}",
            created=int(self._received.timestamp()),
            model=request.model,
            conversation_id=place.conversation_id,
            fingerprint=f"{served.version}-{served.policy.hash}",
        )

    async def events(self) -> AsyncGenerator[Event | None]:
        """Generate all choices; each has ended when it is in the log. Closing the iterator aborts those in progress.

        None stands for an interval of silence. Raises `APIError` for a conversation that leaves no room for a reply,
        and the errors of agent, engine and log.
        """
        queue: asyncio.Queue[Event | BaseException] = asyncio.Queue()
        tasks = [self.hold.start(self._choose(index, queue)) for index in range(self.choices)]
        ended = 0
        try:
            await asyncio.sleep(0)  # all have begun: a task that is cancelled before would leave no line in the log
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
                task.cancel()  # it logs its turn by itself: this block may be cancelled at any await

    def _refuse_unread(self) -> None:
        """Raise `APIError` for a parameter that this agent cannot give its effect to."""
        agent, before, strategy = self.version.served.agent, self._place.before, self._request.strategy
        if before is not None and strategy is not None and strategy != before.strategy:
            message = f"the conversation began with strategy {before.strategy}; start another one for {strategy}"
            raise invalid_request(message, param="strategy", code="unsupported_value")
        if self._request.tool_choice == "none" and type(self._renderer) is not Renderer:
            message = "tool_choice none is not read: a renderer of the user's own, or another server, parses the calls"
            raise invalid_request(message, param="tool_choice", code="unsupported_value")
        if self._request.stops and (agent.overrides_replies or agent.config.enable_reasoning or self._renderer.reasons):
            message = "stop is not read: the agent reasons, or generates several texts in a turn"
            raise invalid_request(message, param="stop", code="unsupported_value")

    async def _choose(self, index: int, queue: asyncio.Queue[Event | BaseException]) -> None:
        """Generate one choice; its events, or its error, go to the queue.

        What follows the generation is a task of its own, which ends also where the client goes away meanwhile.
        """
        tap = TokenTap(self._renderer, self._request.stops)
        transcript: TokenTranscript | None = None
        try:
            session = await self.version.open(self._renderer)
            try:
                transcript = self._transcript(session, self._sampling(index), tap)
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
            self.hold.start(self._log_unanswered(index, transcript, tap, "aborted", "the client went away"))
            raise
        except Exception as error:
            if not isinstance(error, APIError):
                self._service.count_error()
            reason = error.message if isinstance(error, APIError) else f"{type(error).__name__}: {error}"[:300]
            await asyncio.shield(self.hold.start(self._log_unanswered(index, transcript, tap, "failed", reason)))
            queue.put_nowait(error)
            return
        await asyncio.shield(self.hold.start(self._end(choice, transcript, tap, queue)))

    async def _respond(self, transcript: TokenTranscript) -> Reply:
        """Reply of the agent; raises `APIError` where the conversation leaves no room for it."""
        try:
            return await self.version.served.agent.respond(transcript, self._new, self._context)
        except ContextLengthExceeded as error:
            message = f"{error.counts}; shorten the messages, or lower max_tokens"
            raise invalid_request(message, param="messages", code="context_length_exceeded") from error

    @property
    def _context(self) -> dict[str, str | None]:
        """Context of the agent; a user is one of its key, since two keys may have users of one name."""
        user = f"{self._caller.key_hash}/{self._request.user or ''}"
        return {"user_id": user, "strategy": self._request.strategy}

    def _transcript(self, session: Session, sampling: Sampling, tap: TokenTap) -> TokenTranscript:
        before = self._place.before
        if before is not None:
            transcript = before.tokens.resume(session, sampling, on_token=tap, fit_reply=self._fit_reply)
        else:
            limit = self.version.max_context
            transcript = TokenTranscript(
                session, self._renderer, sampling, max_context=limit, on_token=tap, fit_reply=self._fit_reply
            )
        transcript.parses_calls = self._request.tool_choice != "none"
        return transcript

    def _sampling(self, index: int) -> Sampling:
        return self._request.to_sampling(
            index,
            temperature=self.version.served.temperature,
            max_new_tokens=self._max_new_tokens,
            seed=self._seed,
            top_logprobs=self._request.top_logprobs or 0,
        )

    async def _stream(self, index: int, tap: TokenTap, queue: asyncio.Queue[Event | BaseException]) -> None:
        """Send text when it is settled, for an agent and a renderer that leave replies as they are sampled."""
        agent = self.version.served.agent
        if not self._request.stream or agent.overrides_replies or type(self._renderer) is not Renderer:
            return
        while True:
            await tap.wait()
            text = tap.settled()
            if agent.config.enable_reasoning:
                text = stable_prefix(text, reasoning=True)
            text = self._renderer.settled_content(text)
            if len(text) > len(tap.sent):
                logprobs = tap.take() if self._request.logprobs else None
                queue.put_nowait(Delta(index=index, text=text[len(tap.sent) :], logprobs=logprobs))
                tap.sent = text
                await asyncio.sleep(self._service.settings.stream_interval_s)

    def _choice(self, index: int, reply: Reply, tap: TokenTap) -> Choice:
        """The reply as the client reads it, cut at a text that ends it."""
        message, stopped = reply.message, tap.stopped_text
        if stopped is not None and reply.as_sampled:
            message = self._renderer.parse_text(stopped)
        if self._request.tool_choice == "none" and message.tool_calls:  # of a text that was parsed again
            message = replace(message, content=(reply.text if stopped is None else stopped).strip(), tool_calls=())
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

    async def _end(
        self, choice: Choice, transcript: TokenTranscript, tap: TokenTap, queue: asyncio.Queue[Event | BaseException]
    ) -> None:
        """Log the answered turn, then remember it and send its end."""
        place, usage = self._place, self._usage(transcript)
        self.hold.used_tokens += usage.prompt + usage.completion
        try:
            answered = AnsweredTurn(
                turn_id=choice.turn_id,
                conversation_id=place.conversation_id,
                owner=self._caller.key_hash,
                user=self._request.user,
                version=self.version,
                tools=self._tools,
                messages=(*place.history, replace(choice.message, reasoning=None, malformed=None)),
                transcript=transcript,
                earlier_calls=self._request.call_ids.union(place.before.calls if place.before is not None else ()),
                strategy=self._request.strategy if place.before is None else place.before.strategy,
            )
            turn = self._record(choice.index, transcript, tap, "answered", choice.finish_reason)
            visible = replace(turn.turns[-1], message=choice.message)
            await self._service.record(replace(turn, turns=(*turn.turns[:-1], visible)), usage, tap.times)
            if place.before is not None:
                place.before.successors += 1
            transcript.release()
            self._service.conversations.add(answered, is_last=choice.index == 0)
        except Exception as error:
            if not isinstance(error, StorageError):
                await self._log_unanswered(choice.index, None, tap, "failed", f"{type(error).__name__}: {error}"[:300])
            queue.put_nowait(error)
            return
        rest = tap.take() if self._request.logprobs else None
        queue.put_nowait(Ended(choice=choice, sent=tap.sent, rest=rest, usage=usage))
        try:
            self.version.served.agent.remember(self._new[-1], choice.message.content, self._context)
        except Exception:
            logger.exception("the agent did not remember turn %s, which is answered", choice.turn_id)

    async def _log_unanswered(
        self, index: int, transcript: TokenTranscript | None, tap: TokenTap, status: TurnStatus, reason: str
    ) -> None:
        """Log a turn without a reply; a log that fails is reported, and the turn is counted as unlogged."""
        read = 0 if transcript is None or not tap.tokens else len(transcript.ids)
        if status != "failed" or transcript is not None:
            self.hold.used_tokens += read + len(tap.tokens)
        try:
            turn = self._record(index, transcript, tap, status, reason)
            await self._service.record(turn, Usage(prompt=0, completion=len(tap.tokens)), tap.times)
        except GRPOError as error:
            logger.error("turn %s was not logged: %s", self._turn_id(index), error)

    def _record(
        self, index: int, transcript: TokenTranscript | None, tap: TokenTap, status: TurnStatus, reason: str
    ) -> ServedTurn:
        """Record of the turn: what the transcript has beyond the turn before."""
        place, served, sampling = self._place, self.version.served, self._sampling(index)
        before = place.before.tokens if place.before is not None else None
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
            first_token_s=tap.times[0] - self._started if tap.times else None,
            latency_s=time.monotonic() - self._started,
            key=self._caller.key_hash,
            user="" if self._request.user is None else self._service.log.user_hash(self._request.user),
            consent=settings.consent,
            licence=settings.licence,
            metadata=self._request.labels,
        )

    def _usage(self, transcript: TokenTranscript) -> Usage:
        """Tokens of the choice; of the cached ones those of its own conversation, which its owner knows."""
        known = self._place.before.size if self._place.before is not None else 0
        sampled = sum(transcript.mask[known:])
        cached = min(transcript.cached_tokens, known)
        return Usage(prompt=len(transcript.ids) - sampled, completion=sampled, cached=cached)

    def _turn_id(self, index: int) -> str:
        return f"{self._id}-{index}" if index else self._id


def _with_system_prompt(prompt: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The conversation after the environment's system prompt, to which a system message of the client is added."""
    given = messages[0].content if messages[0].role == "system" else ""
    content = "\n\n".join(filter(None, (prompt, given)))
    rest = messages[1:] if messages[0].role == "system" else messages
    return (Message(role="system", content=content), *rest) if content else rest
