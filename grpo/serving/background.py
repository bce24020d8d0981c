"""Work that a server does in addition to its requests, e.g. heartbeats and the watch for new versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def in_background(work: Coroutine[Any, Any, None], failed: Callable[[BaseException], None]) -> asyncio.Task[None]:
    """Start work that goes on until `stop`. If it ends by an error before that, `failed` gets the error at once.

    Nothing awaits such a task while the server runs. Without `failed` the server would go on without its work, and its
    error would be known only at the end.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            failed(error)

    task = asyncio.create_task(work)
    task.add_done_callback(ended)
    return task


async def stop(*tasks: asyncio.Task[None]) -> None:
    """End such work. Its errors are known to `failed`."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
