"""Model files of a policy version that a rollout sends to its servers."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo.policy.servers.protocol import WeightsRequest


class HeldFile:
    """An open file. It can be read as long as this object is used, even if the file is removed.

    A run removes a checkpoint when the next one is written, and servers may still lack files of it then. Several
    servers can be sent the same file at once.
    """

    def __init__(self, path: Path) -> None:
        file = path.open("rb")
        weakref.finalize(self, file.close)
        self._descriptor = file.fileno()
        self.size = os.fstat(self._descriptor).st_size
        """Length in bytes."""

    def read(self, count: int, start: int) -> bytes:
        """Up to `count` bytes from byte `start` on. No bytes at the end of the file."""
        return os.pread(self._descriptor, count, start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Model files of a policy version on this machine, and their digests."""

    request: WeightsRequest
    files: Mapping[str, HeldFile]
    """Each file, by its sha256."""
    vocabulary: int
    """The model has the token ids below this number."""
    max_context: int
    """Tokens of the longest conversation."""
