"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

ASKED_S = 0.5
"""Time between two requests of a server, each of which costs both sides some hundredths of a second."""


def until(what: str, condition: Callable[[], Any], *, patience_s: float, every_s: float = 0.1) -> Any:
    """Wait until the condition holds; its value. The condition is looked at every so often."""
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {patience_s:.0f} s in vain: {what}"
        time.sleep(every_s)
    return value
