"""Progress of a download from the hub, reported like the progress of a stage."""

from __future__ import annotations

import threading
from typing import Any

from tqdm import tqdm

from grpo import progress

_MB = 10**6


def fetch_bar(size: int) -> type[tqdm]:
    """Class of a bar for huggingface_hub that draws nothing, and reports the megabytes of `size` bytes."""
    total, lock, fetched = max(1, round(size / _MB)), threading.Lock(), [0]

    class FetchBar(tqdm):
        """Bar that counts the bytes that were written."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._counts = str(options.get("desc", "")).startswith("Reconstructing")
            options["disable"] = True
            options.pop("name", None)
            super().__init__(*arguments, **options)

        def update(self, n: float | None = 1) -> bool | None:
            """See `tqdm.update`."""
            if self._counts:
                with lock:
                    fetched[0] += int(n or 0)
                    progress.report("fetch", min(total, round(fetched[0] / _MB)), total)
            return None

    return FetchBar
