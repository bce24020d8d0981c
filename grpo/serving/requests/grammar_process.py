"""Trial compilation of grammars in a process that can be ended, because some need gigabytes or have no end.

llguidance bounds its work by fuel, but not all of it, see `grpo.policy.grammars`. A thread that compiles cannot be
ended, and the memory that it takes is the server's. So a grammar from a client is compiled here first, and the engine
compiles only grammars that have passed, with the same work and memory. So the limit of memory here also bounds what a
grammar takes in the engine. This module does not cache results.

server                                    process
GrammarProcess ── vocabulary, limits ───► reads the vocabulary
               ◄────────────── ready ──── limits its own memory
               ── grammar ──────────────► compiles it, computes the first mask
               ◄───── reason or None ──── ended if it takes too long, and started again for the next grammar

The limit is one of address space, and memory that an earlier grammar has left behind counts. So the process is also
started again when half of the limit is taken after a grammar. Otherwise the next one could be refused for it.
"""

from __future__ import annotations

import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import psutil

from grpo.data_errors import try_call
from grpo.errors import PolicyError
from grpo.policy.grammars import COMPILED_BYTES, compile_grammar, read_vocabulary, vocabulary_text
from grpo.serving.child_process import end_child

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_START_S = 60.0
_KILLED_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Result of a compilation."""

    reason: str | None
    """Why the grammar is refused, or None if it can be compiled."""
    seconds: float
    """Time that the process worked on it."""
    timed_out: bool = False
    """True if it was ended. Another attempt may succeed, e.g. when the machine has less to do."""


class GrammarProcess:
    """Process that compiles the grammars of one tokenizer, one at a time. It starts with the first grammar.

    `stop_ids` are the tokens that end a turn. The process ends with the server, also if the server is killed, because
    its standard input is closed then.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: Collection[int],
        *,
        compile_s: float,
        memory_bytes: int = COMPILED_BYTES,
    ) -> None:
        self._tokenizer, self._stop_ids = tokenizer, sorted(stop_ids)
        self._compile_s, self._memory_bytes = compile_s, memory_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def compile(self, grammar: str) -> Trial:
        """Compile a grammar, within bounds on time and memory. Raises `PolicyError` if the process does not start."""
        process = self._started()
        begun = time.monotonic()
        answered, answer = _ask(process, grammar, timeout_s=self._compile_s)
        seconds = time.monotonic() - begun
        if answered:
            assert isinstance(answer, tuple)
            reason, is_full = answer
            if is_full:
                self._end()
            return Trial(reason=reason, seconds=seconds)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_S)  # it has closed its pipe, so that it ends by itself
        self._end()
        if seconds >= self._compile_s:
            reason = f"it was not compiled within {self._compile_s:g} s. Send a smaller one"
            return Trial(reason=reason, seconds=seconds, timed_out=True)
        if process.returncode == -signal.SIGKILL:  # by another program, e.g. because the machine ran out of memory
            reason = "the process that compiles it was ended by the system. Send it again"
            return Trial(reason=reason, seconds=seconds, timed_out=True)
        reason = f"to compile it takes more than {self._memory_bytes >> 20} MiB of memory. Send a smaller one"
        return Trial(reason=reason, seconds=seconds)

    def close(self) -> None:
        """End the process. A compilation in progress ends with a refusal."""
        self._closed = True
        self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise PolicyError("the server is stopping, so no grammar is compiled")
            if self._process is not None and self._process.poll() is not None:  # ended while it was idle
                self._end_locked()
            if self._process is None:
                command = [sys.executable, "-P", "-m", __spec__.name]
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
                self._process = process
                alarm_s = self._compile_s + _KILLED_S
                limits = (vocabulary_text(self._tokenizer), self._stop_ids, self._memory_bytes, alarm_s)
                answered, failure = _ask(process, limits, timeout_s=_START_S)
                if not answered or failure is not None:
                    self._end_locked()
                    raise PolicyError(f"the process that compiles grammars did not start: {failure or 'it has ended'}")
            return self._process

    def _end(self) -> None:
        with self._lock:
            self._end_locked()

    def _end_locked(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_child(process)


def _ask(process: subprocess.Popen[bytes], request: object, *, timeout_s: float) -> tuple[bool, object]:
    """True and the answer of a process, or False if it has ended or was killed because the time was over."""
    assert process.stdin is not None
    assert process.stdout is not None
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    try:
        process.stdin.write(pickle.dumps(request))
        process.stdin.flush()
        return True, pickle.load(process.stdout)  # noqa: S301 - of a process of this server
    except (EOFError, OSError, ValueError, pickle.UnpicklingError):  # ValueError: `close` has closed a pipe
        return False, None
    finally:
        timer.cancel()


def main() -> None:
    """Compile the grammars that come over standard input, until it is closed."""
    for stopping in (signal.SIGINT, signal.SIGTERM):  # they reach the whole group, but the server ends this process
        signal.signal(stopping, signal.SIG_IGN)
    limits = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the server that started this process
    text, stop_ids, memory_bytes, alarm_s = limits
    vocabulary = read_vocabulary(text, stop_ids)
    itself = psutil.Process()
    most = itself.memory_info().vms + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _answer(None)
    while True:
        try:
            grammar = pickle.load(sys.stdin.buffer)  # noqa: S301 - as above
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, alarm_s)  # ends this process, if the server was killed and does not
        failure = try_call(partial(compile_grammar, vocabulary, grammar))
        signal.setitimer(signal.ITIMER_REAL, 0)
        reason = str(failure) or type(failure).__name__ if isinstance(failure, Exception) else None
        _answer((reason, itself.memory_info().vms > most - memory_bytes // 2))


def _answer(answer: tuple[str | None, bool] | None) -> None:
    """Answer None after the start, and after a grammar the reason of a refusal and whether the memory is half taken."""
    sys.stdout.buffer.write(pickle.dumps(answer))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
