"""Files of models that clients upload, by their sha256, in a folder that the next server removes if this one is killed.

Their bytes in all are bounded. If a file does not fit, the files that were used longest ago are removed first, as its
bytes arrive, because a client that states a size and sends nothing must not remove the files of others. After a version
is loaded, it does not need its files any more.
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
        self._arriving = 0
        """Number of files that arrive."""
        self._announced_bytes = self._written_bytes = 0
        """Bytes of the files that arrive: all that they will have, and what was written so far."""

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
        self._check_room(size)
        self._arriving += 1
        self._announced_bytes += size
        try:
            await self._receive(digest, size, chunks)
        finally:
            self._arriving -= 1
            self._announced_bytes -= size

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

    def _check_room(self, size: int) -> None:
        """Raise `APIError` 413 if so many bytes never fit, and 503 if they do not fit next to files that arrive."""
        if size > self._most_bytes:
            message = f"the file has {size} bytes, and this server keeps {self._most_bytes} (rollouts.weights_bytes)"
            raise APIError(413, message, code="request_too_large", headers={"connection": "close"})
        if self._announced_bytes + size > self._most_bytes:
            raise overloaded("this file does not fit into the store while other files arrive", retry_after_s=10.0)

    async def _receive(self, digest: str, size: int, chunks: AsyncIterator[bytes]) -> None:
        """Write exactly `size` bytes with this sha256. Raises `APIError` 400 or 408."""
        computed, written = hashlib.sha256(), 0
        with scratch_path(self._folder / "arriving") as staged:
            try:
                with staged.open("xb") as file:
                    async for chunk in _in_time(chunks):
                        if written + len(chunk) > size:
                            raise _other_size(size)
                        self._make_room(len(chunk))
                        self._written_bytes += len(chunk)
                        written += len(chunk)
                        computed.update(chunk)
                        file.write(chunk)
                if written != size:
                    raise _other_size(size)
                if computed.hexdigest() != digest:
                    raise invalid_request(f"the file does not have the sha256 {digest}. Send it again")
                os.replace(staged, self._folder / digest)
            finally:
                self._written_bytes -= written
        self._sizes[digest] = size

    def _make_room(self, size: int) -> None:
        """Remove the files that were used longest ago until `size` bytes more fit."""
        while self._sizes and self._written_bytes + sum(self._sizes.values()) + size > self._most_bytes:
            oldest, _ = self._sizes.popitem(last=False)
            (self._folder / oldest).unlink(missing_ok=True)


async def _in_time(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks. Raises `APIError` 408 if one does not arrive in time."""
    rest = aiter(chunks)
    while True:
        try:
            async with asyncio.timeout(_CHUNK_S):
                chunk = await anext(rest, None)
        except TimeoutError as error:
            message = f"no bytes of the file arrived within {_CHUNK_S:.0f} s"
            raise APIError(408, message, code="request_timeout", headers={"connection": "close"}) from error
        if chunk is None:
            return
        yield chunk


def _other_size(size: int) -> APIError:
    return invalid_request(f"the file has not the {size} bytes that content-length states. Send it again")
