"""HTTP clients for servers that this project does not run: each reply is bounded in bytes and in time, as a whole.

httpx limits the pause between two packets. A server that sends one byte a second, or a gigabyte of zeros in a megabyte
of gzip, therefore keeps a caller of httpx waiting or takes its memory. The clients of this module ask for a reply that
is not compressed, read it whole within its bounds, and follow no redirect, because the conversation in the request is
meant for the server that the settings name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

MAX_BYTES = 2**25
"""Bytes of a reply. A turn of 100,000 tokens with their log-probabilities has about 3 MB."""


class ReplyRefused(httpx.TransportError):
    """The reply is larger than the bound, or compressed although the request asked for a plain one."""


class BoundedClient(httpx.AsyncClient):
    """Client that has read each reply when it returns it, also where the caller asks for a stream.

    Raises `ReplyRefused`, and `httpx.ReadTimeout` if the whole reply has not arrived `reply_s` seconds after the last
    byte of the request was sent. A redirect is returned as it is.
    """

    def __init__(self, *, reply_s: float, max_bytes: int = MAX_BYTES, **options: Any) -> None:
        super().__init__(**options)
        self._reply_s, self._max_bytes = reply_s, max_bytes

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """See `httpx.AsyncClient.send`."""
        request.headers["accept-encoding"] = "identity"
        try:
            async with asyncio.timeout(self._reply_s) as deadline:
                assert isinstance(request.stream, httpx.AsyncByteStream)
                request.stream = _SentBody(request.stream, deadline, self._reply_s)
                response = await super().send(request, **{**options, "stream": True, "follow_redirects": False})
                try:
                    content = await self._read(response)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise httpx.ReadTimeout(f"no whole reply in {self._reply_s:g} s", request=request) from error
        return httpx.Response(response.status_code, headers=response.headers, content=content, request=request)

    async def _read(self, response: httpx.Response) -> bytes:
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise ReplyRefused("its reply is compressed, although a plain one was asked for", request=response.request)
        content = bytearray()
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > self._max_bytes:
                size = f"{self._max_bytes >> 20} MiB" if self._max_bytes >= 2**20 else f"{self._max_bytes} bytes"
                raise ReplyRefused(f"its reply has more than {size}", request=response.request)
        return bytes(content)


class _SentBody(httpx.AsyncByteStream):
    """Body of a request, which moves the deadline with each part that is sent, because weights take minutes."""

    def __init__(self, body: httpx.AsyncByteStream, deadline: asyncio.Timeout, reply_s: float) -> None:
        self._body, self._deadline, self._reply_s = body, deadline, reply_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        async for part in self._body:
            yield part
            self._deadline.reschedule(loop.time() + self._reply_s)

    async def aclose(self) -> None:
        await self._body.aclose()


def get(
    url: str,
    *,
    seconds: float,
    headers: Mapping[str, str] | None = None,
    auth: httpx.Auth | None = None,
    max_bytes: int = 2**20,
) -> httpx.Response:
    """GET a small reply from code without an event loop. Raises `httpx.HTTPError` and `httpx.InvalidURL`."""

    async def fetch() -> httpx.Response:
        async with BoundedClient(reply_s=seconds, max_bytes=max_bytes, timeout=seconds) as client:
            return await client.get(url, headers=headers, auth=auth)

    with ThreadPoolExecutor(1) as executor:  # the caller's thread may run an event loop
        return executor.submit(asyncio.run, fetch()).result()
