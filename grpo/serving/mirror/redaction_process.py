"""Redaction in its own process, because a text of megabytes keeps the interpreter busy for seconds.

On a thread, the redaction would stop the server's event loop for that time.

server                               process
RedactionProcess ── conversation ──► redact_messages
                 ◄────── messages ──
                 ── closes ────────► exit

The process starts with the first conversation. It ends when the server ends, also if the server is killed, because its
standard input is closed then. If the process dies, it is started again. If it dies twice on the same conversation, this
conversation is refused, so that the others go on.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from pydantic import ValidationError

from grpo.data_errors import try_call
from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenarios.quarantine import reason_from_error
from grpo.scenarios.redaction import redact_messages
from grpo.serving.child_process import end_child

_ATTEMPTS = 2


class RedactionProcess:
    """Process that redacts conversations, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Id of the process. None before the first conversation and after `close`."""
        return None if self._process is None else self._process.pid

    def redact(self, name: str, messages: Sequence[Message]) -> list[Message]:
        """Redact as `redact_messages`.

        Raises `DataError` if the conversation cannot be redacted, and `ConnectionError` once `close` was called.
        """
        request = try_call(lambda: pickle.dumps((name, list(messages))))
        if isinstance(request, Exception):
            raise DataError(f"{name} cannot be redacted: {type(request).__name__}") from request
        for _ in range(_ATTEMPTS):
            try:
                answer = self._ask(request)
            except (EOFError, OSError, ValueError, pickle.UnpicklingError):  # ValueError: `close` has closed the pipe
                if self._closed:
                    raise ConnectionError("the redaction was closed") from None
                self._end()
            else:
                if isinstance(answer, str):
                    raise DataError(f"{name} cannot be redacted: {answer}")
                return answer
        raise DataError(
            f"{name} is not mirrored: the process that redacts ended {_ATTEMPTS} times while it read it, usually for "
            "lack of memory. Give the server more"
        )

    def close(self) -> None:
        """End the process. A call of `redact` in progress raises `ConnectionError`."""
        self._closed = True
        self._end()

    def _ask(self, request: bytes) -> list[Message] | str:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request)
        process.stdin.flush()
        answer: list[Message] | str = pickle.load(process.stdout)  # noqa: S301 - of a process of this server
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise ConnectionError("the redaction was closed")
            if self._process is None:
                command = [sys.executable, "-P", "-m", __spec__.name]
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            return self._process

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                end_child(process)


def main() -> None:
    """Redact the conversations that come over standard input, until it is closed."""
    for stopping in (signal.SIGINT, signal.SIGTERM):  # they reach the whole group, but the server ends this process
        signal.signal(stopping, signal.SIG_IGN)
    while True:
        try:
            name, messages = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the server that started this process
        except EOFError:
            return
        redacted = try_call(lambda name=name, messages=messages: redact_messages(name, messages))  # type: ignore[misc]
        answer = _reason(redacted) if isinstance(redacted, Exception) else redacted
        sys.stdout.buffer.write(pickle.dumps(answer))
        sys.stdout.buffer.flush()


def _reason(error: Exception) -> str:
    """Reason of an error, without any text of the conversation."""
    return reason_from_error(error).message if isinstance(error, ValidationError) else type(error).__name__


if __name__ == "__main__":
    main()
