"""Attacks of one key on a server, in a process of their own.

python -m tests.benchmarks.attack_load KIND PORT MODEL KEY SECONDS
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from pydantic import BaseModel
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

LIMITED = "limits"
"""Attack whose key has a limit of 50 tokens a minute."""
KINDS = {
    "texts": "texts of 4 MB",
    "ids": "10⁶ token ids",
    "messages": "1,999 messages",
    "frames": "WebSocket frames of 1.8 million tokens",
    "json": "wide and deep JSON of 4 MB",
    "heads": "500 heads that never end",
    "silent": "2,000 silent sockets",
    "sockets": "500 idle WebSockets",
    "tools": "tools of 4 MB",
    "blanks": "4 MB of blanks",
    "arguments": "arguments of calls, 2 million values",
    "bodies": "500 bodies to /health that never arrive",
    "own-bodies": "500 bodies to /v1/chat/completions that never arrive",
    LIMITED: "250 KB that a limit refuses, in a loop",
    "leaving": "WebSocket frames of 4 MB, sent and left",
}
_AT_ONCE, _PAUSE_S = 4, 0.05
_TEXT = "word " * (4 * 10**6 // 5 - 100)


class Answers(BaseModel):
    """What the attack got."""

    counts: dict[str, int] = {}

    def text(self) -> str:
        """Cell of a table."""
        return ", ".join(f"{count:,} × {name}" for name, count in sorted(self.counts.items()))


class Attack:
    """One attack in progress."""

    def __init__(self, port: int, model: str, key: str, seconds: float) -> None:
        self.counts: Counter[str] = Counter()
        self._port, self._model, self._key = port, model, key
        self._end = time.monotonic() + seconds

    async def run(self, kind: str) -> Answers:
        """Attack until the time is over."""
        seconds = self._end - time.monotonic()
        attacks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "texts": lambda: self._post("/v1/chat/completions", self._chat([_TEXT])),
            "ids": lambda: self._post("/v1/completions", {"prompt": [7] * 10**6}),
            "messages": lambda: self._post("/v1/chat/completions", self._chat(["Hello there, where is it?"] * 1999)),
            "frames": self._frames,
            "json": self._json,
            "heads": lambda: self._hold(500, b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n", drip=b"x-a: b\r\n"),
            "silent": lambda: self._hold(2000, b""),
            "sockets": self._sockets,
            "tools": lambda: self._post("/v1/chat/completions", {**self._chat(["x"]), "tools": [_tool(_TEXT)]}),
            "blanks": lambda: self._post("/v1/chat/completions", self._chat([" " * len(_TEXT)])),
            "arguments": lambda: self._post("/v1/chat/completions", _calls(40, '{"a":[' + "1," * 49_980 + "1]}")),
            "bodies": lambda: self._hold(500, self._endless("/health")),
            "own-bodies": lambda: self._hold(500, self._endless("/v1/chat/completions")),
            LIMITED: self._limits,
            "leaving": self._leaving,
        }
        await asyncio.wait([asyncio.create_task(attacks[kind]())], timeout=seconds)
        return Answers(counts=dict(self.counts))

    def _chat(self, texts: list[str]) -> dict[str, Any]:
        roles = ("user", "assistant")
        return {"messages": [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]}

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        await self._send(path, [json.dumps({"model": self._model, **body}).encode()])

    async def _json(self) -> None:
        wide = b'{"model": "x", "messages": [' + b"{}," * (4 * 10**6 // 3 - 20) + b"{}]}"
        deep = b'{"model": "x", "messages": ' + b"[" * 2_000_000
        await self._send("/v1/chat/completions", [wide, deep])

    async def _limits(self) -> None:
        body = json.dumps({"model": self._model, **self._chat(["word " * 100])}).encode()
        await self._send("/v1/chat/completions", [body + b" " * 250_000])

    async def _send(self, path: str, bodies: list[bytes]) -> None:
        """Send bodies, each over a connection that stays open as long as the server lets it."""

        async def one(number: int) -> None:
            reader, writer = None, None
            body = bodies[number % len(bodies)]
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._key}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            while time.monotonic() < self._end:
                try:
                    if reader is None or writer is None:
                        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                    writer.write(head.encode() + body)
                    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
                    self.counts[answer.split()[1].decode()] += 1
                    length = int(answer.partition(b"content-length: ")[2].split(b"\r\n")[0])
                    await reader.readexactly(length)
                    if b"connection: close" in answer:
                        writer.close()
                        reader = writer = None
                except (OSError, EOFError, ValueError):
                    self.counts["closed"] += 1
                    reader = writer = None
                await asyncio.sleep(_PAUSE_S)

        await asyncio.gather(*(one(number) for number in range(_AT_ONCE)))

    async def _frames(self) -> None:
        frame = json.dumps({"model": self._model, **self._chat(["a b " * 900_000])})

        async def one() -> None:
            while time.monotonic() < self._end:
                try:
                    async with self._connect() as socket:
                        while time.monotonic() < self._end:
                            await socket.send(frame)
                            answer = json.loads(await socket.recv())
                            self.counts[f"{answer.get('status', 200)}"] += 1
                            await asyncio.sleep(_PAUSE_S)
                except (OSError, ConnectionClosed, InvalidHandshake) as error:
                    response = getattr(error, "response", None)
                    self.counts["closed" if response is None else str(response.status_code)] += 1
                await asyncio.sleep(_PAUSE_S)

        await asyncio.gather(*(one() for _ in range(_AT_ONCE)))

    def _endless(self, path: str) -> bytes:
        """Head of a request whose body never arrives."""
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._key}\r\ncontent-length: 5\r\n\r\n"
        return head.encode()

    async def _leaving(self) -> None:
        async def one() -> None:
            while time.monotonic() < self._end:
                try:
                    async with self._connect() as socket:
                        await socket.send("{" + _TEXT)
                    self.counts["left"] += 1
                except (OSError, ConnectionClosed, InvalidHandshake) as error:
                    response = getattr(error, "response", None)
                    self.counts["closed" if response is None else str(response.status_code)] += 1
                await asyncio.sleep(_PAUSE_S)

        await asyncio.gather(*(one() for _ in range(_AT_ONCE)))

    async def _sockets(self) -> None:
        async def one() -> None:
            while time.monotonic() < self._end:
                try:
                    async with self._connect() as socket:
                        self.counts["open"] += 1
                        await socket.recv()
                except (OSError, ConnectionClosed, InvalidHandshake) as error:
                    response = getattr(error, "response", None)
                    self.counts["closed" if response is None else str(response.status_code)] += 1
                await asyncio.sleep(1.0)

        await self._gradually([one] * 500)

    async def _hold(self, number: int, content: bytes, drip: bytes = b"") -> None:
        """Hold sockets open; one that the server closes is opened again."""

        async def one() -> None:
            while time.monotonic() < self._end:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                    self.counts["open"] += 1
                    writer.write(content)
                    while not reader.at_eof():
                        try:
                            async with asyncio.timeout(1.0 if drip else None):
                                await reader.read(1000)
                        except TimeoutError:
                            writer.write(drip)
                    writer.close()
                    self.counts["closed"] += 1
                except OSError:
                    self.counts["refused"] += 1
                await asyncio.sleep(1.0)

        await self._gradually([one] * number)

    async def _gradually(self, attacks: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Begin 500 in a second."""
        tasks = []
        for attack in attacks:
            tasks.append(asyncio.create_task(attack()))
            await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)

    def _connect(self) -> connect:
        address = f"ws://127.0.0.1:{self._port}/v1/chat/stream"
        headers = {"Authorization": f"Bearer {self._key}"}
        return connect(address, additional_headers=headers, compression=None, open_timeout=30, max_size=None)


def _tool(description: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": description}}


def _calls(number: int, arguments: str) -> dict[str, Any]:
    """Messages with as many calls and their results."""
    calls = [
        {"id": str(i), "type": "function", "function": {"name": "f", "arguments": arguments}} for i in range(number)
    ]
    results = [{"role": "tool", "tool_call_id": str(i), "content": "1"} for i in range(number)]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    return {"messages": messages}


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    _, chosen, given_port, given_model, given_key, given_seconds = sys.argv
    attack = Attack(int(given_port), given_model, given_key, float(given_seconds))
    sys.stdout.write(asyncio.run(attack.run(chosen)).model_dump_json())
