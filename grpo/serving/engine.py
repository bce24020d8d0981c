"""Engine: the rollout's sampler in a thread of its own, for callers on other event loops.

    caller's loop     generate ──►            ◄── Generation          cancel ──►
    engine's loop               submit │ pass │ pass │ pass │ …                │ the slot is free before the next pass
    engine's thread     on_token is called here, after each pass

A session is a slot of the batch. What a closed session has read stays in the prefix cache, so that a server opens a
session per request, gives it all tokens of the conversation, and only those after the cached ones are read.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Self

from grpo.errors import ConfigError, PolicyError
from grpo.policy.policy import Generation, Prompt, SampledToken, Sampling
from grpo.policy.transformers.model import TransformersPolicy
from grpo.policy.transformers.samplers import make_serving_sampler
from grpo.policy.transformers.serving_sampler import ServingSampler
from grpo.policy.transformers.turn_sampler import TurnSession
from grpo.renderers.chat_template import Renderer


class EngineStopped(PolicyError):
    """The engine was stopped before the turn was generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Load of an engine, and its counters since the start."""

    running: int
    """Turns in the batch."""
    waiting: int
    """Turns that wait for a slot."""
    kv_tokens: int
    """Tokens whose keys and values are in slots."""
    kv_capacity: int
    """Tokens that the slots can hold before they grow."""
    prefix_cache_bytes: int
    """Bytes of the keys and values of closed sessions."""
    prefix_queries: int
    """Prompt tokens of first turns, each looked up once."""
    prefix_hits: int
    """Those that were not read again."""
    tokens_processed: int
    """Tokens of all forward passes."""
    tokens_generated: int
    turns_admitted: int
    queue_s: float
    """Sum of the times that admitted turns have waited for a slot."""


class Engine:
    """Sampler of a policy in a thread of its own; an async context manager, used by any event loop while it is open.

    `concurrency` is the number of slots, `prefill_chunk` the most prompt tokens that one forward pass reads beside the
    running turns, `prefix_cache_bytes` the most memory for the keys and values of closed sessions. A model without
    flat attention takes whole prompts and keeps nothing.
    """

    def __init__(
        self,
        policy: TransformersPolicy,
        renderer: Renderer,
        *,
        concurrency: int = 64,
        prefill_chunk: int = 64,
        prefix_cache_bytes: int = 2**28,
    ) -> None:
        if concurrency < 1 or prefill_chunk < 1 or prefix_cache_bytes < 0:
            raise ConfigError(
                f"concurrency {concurrency} and prefill_chunk {prefill_chunk} of an engine must be at least 1, "
                f"prefix_cache_bytes {prefix_cache_bytes} at least 0"
            )
        self._max_context = policy.max_context
        self._slots = concurrency
        self._vocabulary = int(policy.model.get_input_embeddings().num_embeddings)
        self._sampler = make_serving_sampler(
            policy.model,
            stop_ids=renderer.stop_ids,
            concurrency=concurrency,
            max_context=policy.max_context,
            prefill_chunk=prefill_chunk,
            prefix_cache_bytes=prefix_cache_bytes,
        )
        self._thread = threading.Thread(target=self._run, name=f"engine-{policy.hash}", daemon=True)
        self._started: Future[None] = Future()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The thread's loop, while turns are accepted."""
        self._turns: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        """Start the thread; an engine starts once."""
        self._thread.start()
        await asyncio.wrap_future(self._started)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End the turns in progress with `EngineStopped`, and the thread after its forward pass."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join)

    def open(self) -> EngineSession:
        """Start a conversation."""
        return EngineSession(self, self._sampler.open())

    def scale(self, concurrency: int) -> None:
        """Change the number of turns in the batch, up to that of the slots; those in progress go on.

        Callable from any thread. Raises `ConfigError` for a number that is not between 1 and the slots.
        """
        if not 1 <= concurrency <= self._slots:
            raise ConfigError(
                f"concurrency {concurrency} of an engine with {self._slots} slots: take 1 to {self._slots}"
            )
        self._call(lambda: self._sampler.scale(concurrency))

    def stats(self) -> EngineStats:
        """Load and counters now; callable from any thread."""
        sampler = self._sampler
        slots = sampler if isinstance(sampler, ServingSampler) else None
        return EngineStats(
            running=sampler.running,
            waiting=sampler.waiting,
            kv_tokens=slots.kv_tokens if slots else 0,
            kv_capacity=slots.kv_capacity if slots else 0,
            prefix_cache_bytes=slots.prefix_cache_bytes if slots else 0,
            prefix_queries=slots.prefix_queries if slots else 0,
            prefix_hits=slots.prefix_hits if slots else 0,
            tokens_processed=sampler.tokens_processed,
            tokens_generated=sampler.tokens_generated,
            turns_admitted=sampler.turns_admitted,
            queue_s=sampler.queue_s,
        )

    def _check(self, ids: Sequence[int], *, history: int) -> None:
        """Raise `PolicyError` for prompt tokens after `history` tokens that the model cannot read."""
        if not ids:
            raise PolicyError("the prompt is empty; it must have at least one token")
        if min(ids) < 0 or max(ids) >= self._vocabulary:
            raise PolicyError(
                f"the prompt has token {min(ids) if min(ids) < 0 else max(ids)}; the model's are 0 to "
                f"{self._vocabulary - 1}"
            )
        if history + len(ids) >= self._max_context:
            raise PolicyError(
                f"the conversation has {history + len(ids)} tokens, which leaves no room for a reply in the model's "
                f"context of {self._max_context}; shorten it"
            )

    def _submit(self, coroutine: Coroutine[Any, Any, Generation]) -> Future[Generation]:
        """Run a coroutine on the engine's loop. Raises `EngineStopped`."""
        with self._lock:  # none is accepted after the stop, which would leave it waiting
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise EngineStopped("the engine does not run; enter its context before a turn, and leave it after the last")

    def _call(self, function: Callable[[], object]) -> None:
        """Call a function on the engine's loop; not at all once it has stopped."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function)

    async def _generate(self, session: TurnSession, prompt: Prompt, sampling: Sampling) -> Generation:
        """Generate a turn on the engine's loop; a session whose turn does not end is closed."""
        task = asyncio.current_task()
        assert task is not None
        self._turns.add(task)
        callback = None if prompt.on_token is None else _Callback(prompt.on_token)
        try:
            generation = await session.generate(replace(prompt, on_token=callback), sampling)
            if callback is not None and callback.error is not None:
                raise callback.error
            return generation
        except BaseException as error:
            session.close()
            if isinstance(error, asyncio.CancelledError) and self._stopping.is_set():
                raise EngineStopped("the engine was stopped during the turn; send it to another one") from error
            raise
        finally:
            self._turns.discard(task)

    def _run(self) -> None:
        """Run the event loop of the thread."""
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            raise

    async def _serve(self) -> None:
        """Accept turns until the engine stops."""
        self._stopping = asyncio.Event()
        async with self._sampler:
            self._loop = asyncio.get_running_loop()
            self._started.set_result(None)
            await self._stopping.wait()
            turns = tuple(self._turns)
            for task in turns:
                task.cancel()
            await asyncio.gather(*turns, return_exceptions=True)


class EngineSession:
    """One conversation of an `Engine`, for one caller at a time."""

    def __init__(self, engine: Engine, session: TurnSession) -> None:
        self._engine = engine
        self._session = session
        self._closed = False

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`; `Prompt.on_token` is called on the engine's thread.

        A turn that is cancelled, or that fails, leaves the batch before the next forward pass and closes the session.
        Raises `PolicyError` for tokens outside of the vocabulary, an empty prompt and one that fills the context,
        `EngineStopped` if the engine ends, an error of the forward pass, and one of `on_token`.
        """
        if self._closed:
            raise PolicyError("the session is closed, by its owner or after a turn that failed; open another one")
        engine, session = self._engine, self._session
        engine._check(prompt.new_ids, history=session.length + (session.last is not None))
        try:
            return await asyncio.wrap_future(engine._submit(engine._generate(session, prompt, sampling)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """See `Session.close`; callable from any thread, also during a turn, which is cancelled."""
        self._closed = True
        self._engine._call(self._session.close)


class _Callback:
    """A caller's `on_token`, whose error ends its own turn and not the batch."""

    def __init__(self, function: Callable[[SampledToken], bool | None]) -> None:
        self._function = function
        self.error: Exception | None = None

    def __call__(self, token: SampledToken) -> bool | None:
        try:
            return self._function(token)
        except Exception as error:  # noqa: BLE001 - any exception of the caller's function is its turn's
            self.error = error
            return True
