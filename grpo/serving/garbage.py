"""Garbage collection of a server: a full collection looks only at objects that are new since the last one.

A full collection stops the event loop, and so every stream, for about two microseconds per object: 370 ms at 170,000
objects. Each conversation in memory has two dozen objects. `grpo.serving.server` enters `frozen_survivors` while the
server runs. Other commands do not need it, because they have no streams. They collect rarely instead, which makes each
collection longer (`grpo_local.settings.collect_rarely`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OFTEN = (700, 10, 10)
"""Thresholds of Python 3.11: a full collection comes after 70,000 new objects, and takes a tenth of a second."""


@contextmanager
def frozen_survivors() -> Iterator[None]:
    """While the block runs, objects that survive a full collection are left out of later ones.

    They are still freed when nothing refers to them any more, as with conversations. Cycles of such objects stay until
    a version is removed, because the next full collection then looks at all objects once. Collections come as often as
    Python makes them by default, whatever was set before.
    """

    def freeze(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()

    before = gc.get_threshold()
    gc.callbacks.append(freeze)
    gc.set_threshold(*_OFTEN)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(freeze)
