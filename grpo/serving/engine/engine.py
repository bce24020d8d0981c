"""Engine: turns of many conversations, sampled in a separate process, see `grpo.serving.engine.process`.

    caller        generate ──►                ◄── Generation         cancel ──►
    event loop            submit     on_token, for each token of a pass         the slot is free before the next pass
    process                     │ pass │ pass │ pass │ …

Because it runs in another process, a forward pass blocks neither the server's event loop nor its interpreter lock.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import logging
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.forkserver import ensure_running
from typing import TYPE_CHECKING, Self

from grpo.errors import ConfigError, PolicyError
from grpo.policy.grammars import GrammarError
from grpo.policy.policy import Generation, Prompt, SampledToken, Sampler, Sampling
from grpo.renderers.chat_template import Renderer
from grpo.serving.engine.heartbeat import Heartbeat
from grpo.serving.engine.message_connection import MessageConnection, read_frame
from grpo.serving.engine.messages import (
    Cancel,
    Ended,
    EngineStats,
    Failed,
    Loaded,
    LoadFailed,
    Pass,
    Scale,
    Start,
    Submit,
)

if TYPE_CHECKING:
    from grpo.policy.transformers.model import TransformersPolicy

logger = logging.getLogger(__name__)

_CONTEXT = (
    multiprocessing.get_context("spawn") if sys.platform == "darwin" else multiprocessing.get_context("forkserver")
)
"""Engine processes are forked from a process that has imported PyTorch but runs none of it, so that they start at once.
On macOS each engine process imports PyTorch itself, because macOS frameworks break after a fork. The server itself does
not import it."""
_CONTEXT.set_forkserver_preload(["grpo.serving.engine.process"])
_END_S, _KILLED_S = 1.0, 30.0
"""Longest waits for a process to end after its connection has closed, and after it was killed."""


def start_forkserver() -> None:
    """Start the process that engine processes are forked from. It needs seconds to import PyTorch."""
    if _CONTEXT.get_start_method() == "forkserver":
        ensure_running()


def _run(connection: socket.socket, pulse: socket.socket, load: Callable[[], TransformersPolicy]) -> None:
    """Main function of an engine process."""
    from grpo.serving.engine.process import run

    run(connection, pulse, load)


class EngineStopped(PolicyError):
    """The engine was stopped before the turn was generated."""


class ProcessPolicy:
    """Policy in an engine process, which calls `load` and keeps the weights.

    Blocks until the weights are loaded. If `load` raises an error, it is raised here. Raises `PolicyError` if the
    process ends before the weights are loaded.
    """

    def __init__(self, load: Callable[[], TransformersPolicy]) -> None:
        self.connection, other = socket.socketpair()
        pulse, beating = socket.socketpair()
        self.heartbeat = Heartbeat(pulse)
        self.engine: Engine | None = None
        """Engine of this process, or None until one was entered."""
        self._process = _CONTEXT.Process(target=_run, args=(other, beating, load), name="engine")
        try:
            self._process.start()
        except EOFError as error:
            raise PolicyError("the process that engine processes are forked from has ended. Try again") from error
        atexit.register(self._process.kill)  # so that the interpreter does not wait for it at exit
        other.close()
        beating.close()
        try:
            answer: Loaded | LoadFailed = read_frame(self.connection)
        except EOFError as error:
            raise PolicyError(f"{self.end()} while it loaded the model. It may lack memory") from error
        except BaseException:
            self.connection.close()  # which ends the process
            self.heartbeat.close()
            raise
        if isinstance(answer, LoadFailed):
            self.close()
            raise answer.error
        self.hash = answer.policy_hash
        self.max_context = answer.max_context
        self.tokenizer = answer.tokenizer
        self.vocabulary = answer.vocabulary
        """The model reads the token ids below this number."""

    @property
    def pid(self) -> int:
        """Id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def sampler(self, *, concurrency: int, renderer: Renderer) -> AbstractAsyncContextManager[Sampler]:
        """See `Policy.sampler`. A process has one engine, so later callers share the first one."""
        return Engine(self, renderer, concurrency=concurrency) if self.engine is None else nullcontext(self.engine)

    def end(self) -> str:
        """End the process after its connection was lost, and return a sentence that says how it ended."""
        self._process.join(_END_S)
        code = self._process.exitcode
        self.close(wait_s=_END_S)  # the event loop waits as well
        return f"the engine process ended with exit code {code}" if code is not None else "the engine process was lost"

    def close(self, *, wait_s: float = _KILLED_S) -> None:
        """Kill the process, which has nothing to save, and wait up to `wait_s` until its memory is free again."""
        self.connection.close()
        self.heartbeat.close()
        self._process.kill()
        self._process.join(wait_s)
        if self._process.is_alive():  # it waits for a device, and must not hold up the next version
            message = "the engine process %d was killed and has not ended after %.0f s. Look at its device"
            logger.error(message, self.pid, wait_s)
        atexit.unregister(self._process.kill)


class Engine:
    """Sampler of a policy in an engine process, as an async context manager.

    Only the event loop that has entered the context may use it. `concurrency` is the number of slots. `prefill_chunk`
    is how many prompt tokens of a turn one forward pass reads in addition to the running turns. `prefix_cache_bytes`
    limits the memory for the keys and values of closed sessions. `threads` is the number of CPU threads of a forward
    pass. If the model has no flat attention, it reads whole prompts, and nothing is cached.
    """

    def __init__(
        self,
        policy: ProcessPolicy,
        renderer: Renderer,
        *,
        concurrency: int = 64,
        prefill_chunk: int = 64,
        prefix_cache_bytes: int = 2**28,
        threads: int | None = None,
    ) -> None:
        if concurrency < 1 or prefill_chunk < 1 or prefix_cache_bytes < 0:
            raise ConfigError(
                f"concurrency {concurrency} and prefill_chunk {prefill_chunk} of an engine must be at least 1, "
                f"prefix_cache_bytes {prefix_cache_bytes} at least 0"
            )
        self._policy = policy
        self._start = Start(
            stop_ids=frozenset(renderer.stop_ids),
            concurrency=concurrency,
            prefill_chunk=prefill_chunk,
            prefix_cache_bytes=prefix_cache_bytes,
            threads=threads,
        )
        self._frames = MessageConnection(self._receive, self._lost)
        self._turns: dict[int, _Turn] = {}
        self._numbers = itertools.count()
        self._stats = EngineStats()
        self._heard = 0.0
        """Monotonic time of the last sign of progress: a message of the process, or a turn that ended an idle time."""
        self._started: asyncio.Future[None]
        self.stopped: str | None = "the engine does not run. Enter its context before a turn"
        """Reason why no turn can be generated. None while the engine runs."""

    async def __aenter__(self) -> Self:
        """Start the engine. It can be started only once."""
        self._policy.engine = self
        connection, loop = self._policy.connection, asyncio.get_running_loop()
        connection.setblocking(False)
        self._started = loop.create_future()
        await loop.create_unix_connection(lambda: self._frames, sock=connection)
        self._frames.send(self._start)
        await self._started
        self._policy.heartbeat.watch()
        self.stopped = None
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End the turns in progress with `EngineStopped`, and the process."""
        self._frames.close()
        self._policy.heartbeat.close()
        self._stop("the engine was stopped. Send the turn to another one")
        await asyncio.to_thread(self._policy.close)

    def open(self) -> EngineSession:
        """Start a conversation."""
        return EngineSession(self)

    def scale(self, concurrency: int) -> None:
        """Change how many turns the batch may hold. Turns in progress go on.

        Raises `ConfigError` if the number is not between 1 and the number of slots.
        """
        slots = self._start.concurrency
        if not 1 <= concurrency <= slots:
            raise ConfigError(
                f"concurrency {concurrency} is not between 1 and {slots}, the number of slots that the engine was "
                "started with"
            )
        self._frames.send(Scale(concurrency))

    @property
    def silent_s(self) -> float:
        """Seconds since the last heartbeat of the process."""
        return self._policy.heartbeat.silent_s

    def stats(self) -> EngineStats:
        """Load and counters after the last forward pass. Any thread may call this."""
        return self._stats

    def submit(self, ids: Sequence[int], index: int, prompt: Prompt, sampling: Sampling) -> _Turn:
        """Queue the turn `index` of a session with these tokens. Raises `EngineStopped` if the engine does not run."""
        if self.stopped is not None:
            raise EngineStopped(self.stopped)
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        turn = _Turn(number=next(self._numbers), prompt=prompt, sampling=sampling, future=future)
        if not self._turns:
            self._heard = time.monotonic()
        self._turns[turn.number] = turn
        self._frames.send(Submit(turn.number, ids, index, sampling))
        return turn

    def cancel(self, turn: _Turn) -> None:
        """Take a turn out of the batch."""
        if self._turns.pop(turn.number, None) is not None:
            turn.future.cancel()
            self._frames.send(Cancel(turn.number))

    def end_hung(self, after_s: float) -> None:
        """End the turns in progress with `EngineStopped` if the process has sent nothing for more than `after_s`.

        The engine then counts as stopped, as if its process had been killed. Leaving the context kills the process.
        """
        if self._turns and time.monotonic() - self._heard > after_s:
            self._frames.close()
            self._stop(f"no forward pass of the engine process ended in {after_s:.0f} s")

    def check(self, ids: Sequence[int], *, history: int) -> None:
        """Raise `PolicyError` if the model cannot read these prompt tokens after `history` earlier ones."""
        if not ids:
            raise PolicyError("the prompt is empty. It must have at least one token")
        most = self._policy.vocabulary - 1
        if min(ids) < 0 or max(ids) > most:
            raise PolicyError(
                f"the prompt has token {min(ids) if min(ids) < 0 else max(ids)}. The vocabulary has tokens 0 to {most}"
            )
        if history + len(ids) >= self._policy.max_context:
            raise PolicyError(
                f"the conversation has {history + len(ids)} tokens, which leaves no room for a reply in the model's "
                f"context of {self._policy.max_context}. Shorten it"
            )

    def _receive(self, message: Pass) -> None:
        """Give the tokens of a forward pass to their turns, and resolve the turns that have ended."""
        self._stats, self._heard = message.stats, time.monotonic()
        if not self._started.done():
            self._started.set_result(None)
        ended = []
        for number, cached_tokens in message.begun:
            if number in self._turns:
                self._turns[number].cached_tokens = cached_tokens
        for number, id_, logprob, top_logprobs in message.tokens:
            turn = self._turns.get(number)
            if turn is not None and turn.add(SampledToken(id=id_, logprob=logprob, top_logprobs=top_logprobs)):
                ended.append(turn)
        for end in message.ended:
            turn = self._turns.pop(end.turn, None)
            if turn is not None:
                turn.end(end)
        for turn in ended:
            if self._turns.pop(turn.number, None) is not None:
                self._frames.send(Cancel(turn.number))
                turn.end(Ended(turn.number, "callback"))

    def _lost(self) -> None:
        """Stop the engine, because its process has ended by itself."""
        reason = self._policy.end()
        if not self._started.done():
            self._started.set_exception(EngineStopped(reason))
        self._stop(reason)

    def _stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason
        self._stats = EngineStats()
        turns, self._turns = self._turns, {}
        for turn in turns.values():
            if not turn.future.done():
                turn.future.set_exception(EngineStopped(reason))


class EngineSession:
    """One conversation of an `Engine`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids: list[int] = []
        """Tokens that the session has read and generated."""
        self.turns = 0
        """Turns before the next one. Its random numbers depend on it."""
        self._running: _Turn | None = None
        self._closed = False

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`.

        If a turn is cancelled or fails, it leaves the batch before the next forward pass, and the session closes.
        Raises `PolicyError` if a token is outside of the vocabulary, if the prompt is empty or fills the context, and
        if a forward pass fails. Raises `EngineStopped` if the engine ends, and passes on an error of `on_token`.
        """
        if self._closed:
            raise PolicyError("the session is closed, by its owner or after a turn that failed. Open another one")
        self._engine.check(prompt.new_ids, history=len(self._ids))
        read = [*self._ids, *prompt.new_ids]
        try:
            self._running = self._engine.submit(read, self.turns, prompt, sampling)
            generation = await self._running.future
        except BaseException:
            self.close()
            raise
        own, self._ids = len(self._ids), [*read, *generation.token_ids]
        self._running, self.turns = None, self.turns + 1
        return replace(generation, cached_tokens=max(0, generation.cached_tokens - own))

    def close(self) -> None:
        """See `Session.close`. A turn in progress is cancelled."""
        self._closed = True
        if self._running is not None:
            self._engine.cancel(self._running)


@dataclass(slots=True, kw_only=True)
class _Turn:
    """A turn in progress."""

    number: int
    prompt: Prompt
    sampling: Sampling
    future: asyncio.Future[Generation]
    tokens: list[SampledToken] = field(default_factory=list)
    cached_tokens: int = 0
    called_back: bool = False
    """True if the caller's `on_token` has ended the turn."""
    error: Exception | None = None
    """Error of the caller's `on_token`."""

    def add(self, token: SampledToken) -> bool:
        """Add a token, and return True if the turn ends. An error of the callback ends only its own turn."""
        self.tokens.append(token)
        try:
            self.called_back = self.prompt.on_token is not None and bool(self.prompt.on_token(token))
        except BaseException as error:  # noqa: BLE001 - whatever the caller's function raises is its turn's
            self.error = error if isinstance(error, Exception) else PolicyError(f"{type(error).__name__}: {error}")
        return self.called_back or self.error is not None

    def end(self, end: Ended | Failed) -> None:
        """Give the caller the generated turn, or its error."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        elif isinstance(end, Failed) and end.is_grammar:
            self.future.set_exception(GrammarError(end.error))
        elif isinstance(end, Failed):
            error = PolicyError(f"the engine failed on the turn: {end.error}")
            error.add_note(end.trace)
            self.future.set_exception(error)
        else:
            sampling, tokens = self.sampling, self.tokens
            generation = Generation(
                token_ids=[token.id for token in tokens],
                logprobs=[token.logprob for token in tokens] if sampling.unfiltered else None,
                stop="callback" if self.called_back and end.stop == "length" else end.stop,
                top_logprobs=[token.top_logprobs for token in tokens] if sampling.top_logprobs else None,
                cached_tokens=self.cached_tokens,
            )
            self.future.set_result(generation)
