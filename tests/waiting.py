"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(what: str, condition: Callable[[], Any], *, patience_s: float) -> Any:
    """Wait until the condition holds; its value."""
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {patience_s:.0f} s in vain: {what}"
        time.sleep(0.1)
    return value
