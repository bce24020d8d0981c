"""Files of models that clients upload, by their sha256, in a folder that the next server removes if this one is killed.

Their bytes in all are bounded. If a file does not fit, the files that were used longest ago are removed first. After a
version is loaded, it does not need its files any more.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from grpo.policy.servers.protocol import WeightsRequest
from grpo.policy.weights.sources import ModelFiles
from grpo.serving.protocol.api_errors import APIError, invalid_request, overloaded
from grpo.storage.fetched import user_temp_folder
from grpo.storage.locks import scratch_path

_CHUNK_S = 60.0
"""Longest wait for the next bytes of a file."""
_ARRIVING = 8
"""Most files that may arrive at once."""


class WeightFiles:
    """Uploaded files. `most_bytes` bounds them together, the ones that arrive included."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._place = ExitStack()
        self._folder = self._place.enter_context(scratch_path(user_temp_folder() / "rollout-weights"))
        self._folder.mkdir(mode=0o700)
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Bytes of each complete file, the file that was used longest ago first."""
        self._arriving_bytes = self._arriving = 0

    def close(self) -> None:
        """Remove all files."""
        self._place.close()

    def missing(self, request: WeightsRequest) -> tuple[str, ...]:
        """Digests of a request that were not uploaded or were removed. The other files count as used now."""
        digests = {*request.files.values(), *request.base.values()}
        for digest in digests & self._sizes.keys():
            self._sizes.move_to_end(digest)
        return tuple(sorted(digests - self._sizes.keys()))

    async def receive(self, digest: str, size: int, chunks: AsyncIterator[bytes]) -> None:
        """Store a file of `size` bytes. Raises `APIError` if it has another size or digest, or if there is no room."""
        if self._arriving >= _ARRIVING:
            raise overloaded(f"{_ARRIVING} files arrive at once, which is the limit", retry_after_s=1.0)
        self._make_room(size)
        self._arriving += 1
        self._arriving_bytes += size
        try:
            with scratch_path(self._folder / "arriving") as staged:
                if await _write(staged, size, chunks) != digest:
                    raise invalid_request(f"the file does not have the sha256 {digest}. Send it again")
                os.replace(staged, self._folder / digest)
        finally:
            self._arriving -= 1
            self._arriving_bytes -= size
        self._sizes[digest] = size

    @contextmanager
    def folders(self, request: WeightsRequest) -> Iterator[ModelFiles]:
        """Folders with the files of a request, for as long as the block runs."""
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="version-") as place:
            folder = self._linked(Path(place) / "model", request.files)
            base = self._linked(Path(place) / "base", request.base) if request.base else None
            yield ModelFiles(folder=folder, base=base)

    def _linked(self, folder: Path, files: Mapping[str, str]) -> Path:
        folder.mkdir()
        for name, digest in files.items():
            (folder / name).hardlink_to(self._folder / digest)
        return folder

    def _make_room(self, size: int) -> None:
        """Remove files until `size` bytes fit. Raises `APIError` 413 if they never fit, 503 if others arrive."""
        if size > self._most_bytes:
            message = f"the file has {size} bytes, and this server keeps {self._most_bytes} (rollouts.weights_bytes)"
            raise APIError(413, message, code="request_too_large", headers={"connection": "close"})
        while self._arriving_bytes + sum(self._sizes.values()) + size > self._most_bytes:
            if not self._sizes:
                raise overloaded("other files arrive, and there is no room for this one", retry_after_s=10.0)
            oldest, _ = self._sizes.popitem(last=False)
            (self._folder / oldest).unlink(missing_ok=True)


async def _write(path: Path, size: int, chunks: AsyncIterator[bytes]) -> str:
    """Write exactly `size` bytes, and return their sha256. Raises `APIError` 400 or 408."""
    digest, written = hashlib.sha256(), 0
    rest = aiter(chunks)
    with path.open("xb") as file:
        while True:
            try:
                async with asyncio.timeout(_CHUNK_S):
                    chunk = await anext(rest, None)
            except TimeoutError as error:
                message = f"no bytes of the file arrived within {_CHUNK_S:.0f} s"
                raise APIError(408, message, code="request_timeout", headers={"connection": "close"}) from error
            if chunk is None:
                break
            written += len(chunk)
            if written > size:
                break
            digest.update(chunk)
            file.write(chunk)
    if written != size:
        raise invalid_request(f"the file has not the {size} bytes that content-length states. Send it again")
    return digest.hexdigest()
