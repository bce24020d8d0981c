"""Engine process: the weights of a version and the sampler, separate from the server's event loop.

server                            process
ProcessPolicy     ── fork ──────► load the weights
                  ◄────────────── Loaded
                  ◄────────────── a heartbeat per second, over a separate socket
Engine            ── Start ─────► sampler
                  ── Submit ────► │ pass │ pass │ …     messages are read between passes
                  ── Cancel ────► │
                  ◄─────── Pass ─ tokens of each pass, turns that have ended, load of the sampler
                  ── closes ────► exit

Each turn opens a new session of the sampler and gives it all tokens of its conversation. The sampler keeps what closed
sessions have read, so that only the tokens after that are read.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any

import torch

from grpo.errors import PolicyError
from grpo.policy.grammars import GrammarError, Grammars
from grpo.policy.policy import Generation, Prompt, SampledToken
from grpo.policy.transformers.model import TransformersPolicy
from grpo.policy.transformers.sampling.base import TurnSession
from grpo.policy.transformers.sampling.catalog import make_serving_sampler
from grpo.policy.transformers.sampling.padded_sampler import PaddedSampler
from grpo.policy.transformers.sampling.serving_sampler import ServingSampler
from grpo.policy.transformers.sampling.token_masks import TokenMasks
from grpo.serving.engine.heartbeat import start_beating
from grpo.serving.engine.message_connection import MessageConnection, frame
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


def run(connection: socket.socket, pulse: socket.socket, load: Callable[[], TransformersPolicy]) -> None:
    """Load a policy, and sample from it until the other end of the connection closes. Heartbeats go to `pulse`."""
    for stopping in (signal.SIGINT, signal.SIGTERM):  # the whole group gets them, but the server lets turns end
        signal.signal(stopping, signal.SIG_IGN)
    try:
        policy = load()
        loaded = frame(
            Loaded(
                policy_hash=policy.hash,
                max_context=policy.max_context,
                vocabulary=int(policy.model.get_input_embeddings().num_embeddings),
                tokenizer=policy.tokenizer,
            )
        )
    except Exception as error:  # noqa: BLE001 - the server raises it
        connection.sendall(frame(LoadFailed(_picklable(error))))
        return
    connection.sendall(loaded)
    start_beating(pulse)
    gc.freeze()  # because a collection of all imported and loaded objects would hold up the turns in progress
    asyncio.run(_Process(policy).serve(connection))


def _picklable(error: Exception) -> Exception:
    """The error, or if it cannot be pickled, a `PolicyError` with its text."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - an object of this process
    except Exception:  # noqa: BLE001 - errors of any library
        return PolicyError(f"{type(error).__name__}: {error}")
    return error


class _Process:
    """Turns of the server, in the sampler of a policy."""

    def __init__(self, policy: TransformersPolicy) -> None:
        self._policy = policy
        self._disconnected = asyncio.Event()
        self._frames = MessageConnection(self._receive, self._disconnected.set)
        self._sampler: ServingSampler | PaddedSampler | None = None
        self._grammars: Grammars
        self._compiling: dict[int, asyncio.Task[None]] = {}
        """Turns that wait until their grammars are compiled."""
        self._turns: dict[int, TurnSession] = {}
        self._begun: list[tuple[int, int]] = []
        self._tokens: list[tuple[int, int, float, tuple[tuple[int, float], ...]]] = []
        self._ended: list[Ended | Failed] = []
        self._reporting = False

    async def serve(self, connection: socket.socket) -> None:
        """Handle messages until the connection is closed."""
        asyncio.get_running_loop().set_exception_handler(end_on_callback_error)
        connection.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self._frames, sock=connection)
        await self._disconnected.wait()
        os._exit(0)  # nothing has to be written or closed, and a normal end of the interpreter is slow

    def _receive(self, message: Start | Submit | Cancel | Scale) -> None:
        if isinstance(message, Start):
            self._start(message)
            return
        assert self._sampler is not None
        if isinstance(message, Submit):
            grammar = message.sampling.grammar
            if grammar is None or self._grammars.is_compiled(grammar):
                self._submit(message, self._sampler)
            else:
                self._compiling[message.turn] = asyncio.create_task(self._compile(message, grammar, self._sampler))
        elif isinstance(message, Scale):
            self._sampler.scale(message.concurrency)
        elif message.turn in self._compiling:
            self._compiling.pop(message.turn).cancel()
        elif message.turn in self._turns:
            self._turns[message.turn].close()

    def _start(self, message: Start) -> None:
        set_threads(message.threads)
        self._sampler = make_serving_sampler(
            self._policy.model,
            stop_ids=message.stop_ids,
            concurrency=message.concurrency,
            max_context=self._policy.max_context,
            prefill_chunk=message.prefill_chunk,
            prefix_cache_bytes=message.prefix_cache_bytes,
        )
        self._grammars = Grammars(self._policy.tokenizer, message.stop_ids)
        self._sampler.masks = TokenMasks(self._grammars)
        self._sampler.on_pass = self._report
        self._report()

    async def _compile(self, message: Submit, grammar: str, sampler: ServingSampler | PaddedSampler) -> None:
        """Compile a grammar on a thread, so that passes of other turns go on, and then submit the turn."""
        try:
            await asyncio.to_thread(self._grammars.compile, grammar)
        except Exception as error:  # noqa: BLE001 - any error of a turn is its own, and it would wait for ever
            del self._compiling[message.turn]
            self._fail(message.turn, error)
            self._report()
        else:
            del self._compiling[message.turn]
            self._submit(message, sampler)

    def _submit(self, message: Submit, sampler: ServingSampler | PaddedSampler) -> None:
        number, session = message.turn, sampler.open()
        session.turns = message.index

        def on_token(token: SampledToken) -> None:
            if len(turn.token_ids) == 1:
                self._begun.append((number, turn.cached_tokens))
            self._tokens.append((number, token.id, token.logprob, token.top_logprobs))

        try:
            turn = sampler.submit(session, Prompt(new_ids=message.ids, on_token=on_token), message.sampling)
        except Exception as error:  # noqa: BLE001 - any error of a turn is its own
            self._fail(number, error)
        else:
            self._turns[number] = session
            turn.future.add_done_callback(lambda future: self._end(number, future))
        self._report()

    def _end(self, turn: int, future: asyncio.Future[Generation]) -> None:
        self._turns.pop(turn).close()
        if not future.cancelled():
            error = future.exception()
            if error is None:
                self._ended.append(Ended(turn, future.result().stop))
            else:
                self._fail(turn, error)
        self._report()

    def _fail(self, turn: int, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        is_grammar = isinstance(error, GrammarError)
        self._ended.append(Failed(turn, f"{type(error).__name__}: {error}", trace, is_grammar))

    def _report(self) -> None:
        """Send tokens, ends and statistics after the last callback of a pass and before the next one."""
        if not self._reporting:
            self._reporting = True
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._send)

    def _send(self) -> None:
        self._reporting = False
        self._frames.send(Pass(self._begun, self._tokens, self._ended, self._stats()))
        self._begun, self._tokens, self._ended = [], [], []

    def _stats(self) -> EngineStats:
        sampler = self._sampler
        assert sampler is not None
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


def end_on_callback_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End the process after an error in a callback, because a turn may then never end, or keep its slot.

    The server answers its turns 500, and loads the version again. The error of a task is only reported, because
    the task has given it to its turns.
    """
    loop.default_exception_handler(context)
    if "handle" in context:
        os._exit(1)


def set_threads(threads: int | None) -> None:
    """Set the number of threads of forward passes, by default one fewer than PyTorch's unless OMP_NUM_THREADS is set.

    One core is left free because a pass only ends when its last thread has got a core.
    """
    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        threads = max(1, torch.get_num_threads() - 1)
    if threads is not None:
        torch.set_num_threads(threads)
