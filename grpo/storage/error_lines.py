"""Log of a service. One error is one line, and repeated errors and repeated warnings of uvicorn are counted.

    2026-11-25 16:20:01 ERROR grpo.serving.routes.streams: a turn failed: EngineStopped: the engine process ended
        with exit code -9 (engine.py:160, submit)                                          (one line in the log)
    2026-11-25 16:21:01 ERROR grpo.serving.routes.streams: 212 more times in 60 s: a turn failed: EngineStopped: …

Addresses of objects differ each time, so they are not compared: `<TCPTransport closed=True 0x…>`.
With GRPO_DEBUG=1 tracebacks are written as well. Texts of others (users, models, user code) are escaped, see
`grpo.errors.printable`.
"""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections import OrderedDict
from typing import Any

from grpo.errors import printable
from grpo.user_failures import describe

_WINDOW_S = 60.0
_KINDS = 200
"""Different errors that are counted at a time."""
_OBJECT_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_LONGEST = 1000  # characters of a message
_FORMAT = "%(asctime)s %(levelname)s %(name)s: "


def one_line(error: BaseException) -> str:
    """Type, message and innermost place of an error in the user's or this project's code, on one line."""
    return describe(error, in_project=True, longest=_LONGEST)


class OneLineFormatter(logging.Formatter):
    """Formatter of a record as one line, with type, message and place of an exception, and escaped line breaks."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return self.head(record) + self.body(record)

    def head(self, record: logging.LogRecord) -> str:
        """Time, level and logger."""
        record.asctime = self.formatTime(record, self.datefmt)
        return _FORMAT % vars(record)

    def body(self, record: logging.LogRecord) -> str:
        """Message with the exception, if there is one."""
        message = record.getMessage().strip()
        if message.startswith("Traceback (most recent call last)"):  # uvicorn logs a failed lifespan like this
            message = message.rpartition("\n")[2]
        text = printable(message).replace("\n", "\\n")
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text = f"{text}: {one_line(error)}"
            if os.environ.get("GRPO_DEBUG") == "1":
                text += "\n" + printable("".join(traceback.format_exception(error)))
        return text


class CountingHandler(logging.StreamHandler[Any]):
    """Handler that writes an error, or a warning of uvicorn, once per minute with the number of its repetitions."""

    def __init__(self, stream: Any = None) -> None:
        super().__init__(stream)
        self._lines = OneLineFormatter()
        self.setFormatter(self._lines)
        self._counts: OrderedDict[tuple[str, int, str], tuple[float, int]] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self._write_counts(record.created - _WINDOW_S)
        if record.levelno >= (logging.WARNING if record.name.startswith("uvicorn") else logging.ERROR):
            key = record.name, record.levelno, _OBJECT_ADDRESS.sub("0x…", self._lines.body(record))
            since, count = self._counts.get(key, (record.created, -1))
            self._counts[key] = since, count + 1
            if count >= 0:
                return
            if len(self._counts) > _KINDS:
                self._write_counts(self._counts[next(iter(self._counts))][0])
        super().emit(record)

    def close(self) -> None:
        """Write the counts that are left."""
        self._write_counts(float("inf"))
        super().close()

    def _write_counts(self, until: float) -> None:
        """Write the number of repetitions of each error that was first logged at or before `until`."""
        while self._counts and (oldest := next(iter(self._counts.items())))[1][0] <= until:
            key, (_, count) = oldest
            del self._counts[key]
            if count:
                name, level, body = key
                text = f"{count} more times in {_WINDOW_S:.0f} s: {body}"
                super().emit(logging.LogRecord(name, level, "", 0, text, None, None))


def log_to_stderr(level: int = logging.INFO) -> None:
    """Let this process log to its standard error in this form."""
    logging.basicConfig(handlers=[CountingHandler()], level=level)
