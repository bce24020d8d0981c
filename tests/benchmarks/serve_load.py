"""Load generator of the serving benchmark: conversations over raw sockets, with the time of each streamed event.

python -m tests.benchmarks.serve_load < load.json > turns.json

A closed loop has a number of streams, each of which plays one conversation after another on a connection of its own. An
open loop starts conversations at a rate, whatever the server answers. Times come from the monotonic clock, which all
processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from itertools import count
from random import Random
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from tests.places import ROOT

_TEXT = re.compile(rb'"content": ?"(?!")')
_USAGE = re.compile(rb'"usage": ?\{')
_PROBE_S = 0.1
_AFTER_ERROR_S = 0.05
_REFUSED = 503


class Load(BaseModel):
    """Conversations with one server, or with several in turn."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ports: tuple[int, ...]
    model: str
    key: str
    by_id: bool
    """Send the id of the conversation and its new message; else all messages."""
    seconds: float
    lines: tuple[str, ...]
    """Messages of users and results of tools, which all conversations draw from."""
    system: str | None = None
    streams: int = 0
    rate: float | None = None
    """Conversations that begin in each second, in addition to the streams."""
    turns: int = 4
    max_tokens: int = 32
    vary_tokens: int = 0
    """Each turn asks for up to this many tokens more or fewer, by chance, so that streams do not all end at once."""
    long_line: str = ""
    long_every_s: float | None = None
    """Interval of conversations that begin with the long line."""
    long_turns: int = 1
    probes: tuple[str, ...] = ()
    """Addresses that are read ten times a second."""
    finish: bool = False
    """Wait for the turns in progress at the end; else they are cut."""
    obeys: bool = True
    """Wait as long as a refusal asks for, then ask again; else the conversation ends."""
    redispatch: bool = False
    """Ask the next port after a refusal or a lost connection that nothing was read from, as a proxy does."""


class Turn(BaseModel):
    """One request: its times in seconds of the monotonic clock."""

    conversation: str
    turn: int
    kind: str
    """short, long, or the address of a probe."""
    started: float
    ended: float | None = None
    events: list[float] = []
    """Times of the events with text."""
    tokens: int = 0
    prompt_tokens: int = 0
    status: int = 0
    version: str | None = None
    error: str | None = None


class Connection:
    """Connection to a server, which stays open between requests."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key = port, key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, str]]:
        """Send a request and read the head of its response."""
        if self._streams is not None and self._streams[0].at_eof():  # the server has closed it while it was idle
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        key = f"authorization: Bearer {self._key}\r\n" if self._key else ""
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{key}content-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        return int(lines[0].split()[1]), headers

    async def pieces(self, headers: dict[str, str]) -> AsyncIterator[bytes]:
        """Body of the response, as it comes."""
        assert self._streams is not None
        reader = self._streams[0]
        if "content-length" in headers:
            yield await reader.readexactly(int(headers["content-length"]))
        else:
            while size := int(await reader.readline(), 16):
                yield (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        if headers.get("connection") == "close":
            self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Generator:
    """Load in progress."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.turns: list[Turn] = []
        self._end = time.monotonic() + load.seconds
        self._numbers = count()
        self._connections: list[Connection] = []

    async def run(self) -> list[Turn]:
        """Play the load to its end."""
        load = self.load
        players = [asyncio.create_task(self._stream(index)) for index in range(load.streams)]
        if load.rate is not None:
            players.append(asyncio.create_task(self._open_loop(1 / load.rate, "short")))
        if load.long_every_s is not None:
            players.append(asyncio.create_task(self._open_loop(load.long_every_s, "long")))
        players += [asyncio.create_task(self._probe(path)) for path in load.probes]
        await asyncio.wait(players, timeout=None if load.finish else load.seconds)
        for player in players:
            player.cancel()
        results = await asyncio.gather(*players, return_exceptions=True)
        for connection in self._connections:
            connection.close()
        for result in results:
            if isinstance(result, Exception):
                raise result
        return self.turns

    def _connect(self) -> list[Connection]:
        """A connection to each port."""
        connections = [Connection(port, self.load.key) for port in self.load.ports]
        self._connections += connections
        return connections

    async def _stream(self, index: int) -> None:
        number = next(self._numbers)
        connections = self._connect()
        while time.monotonic() < self._end:
            if not await self._conversation(connections[number % len(connections) :] + connections, number, "short"):
                await asyncio.sleep(_AFTER_ERROR_S)
            number = next(self._numbers)

    async def _open_loop(self, every_s: float, kind: str) -> None:
        playing: set[asyncio.Task[None]] = set()
        idle: list[list[Connection]] = []
        begins = time.monotonic()

        async def play(number: int) -> None:
            connections = idle.pop() if idle else self._connect()
            await self._conversation(connections[number % len(connections) :] + connections, number, kind)
            idle.append(connections)

        try:
            while (begins := begins + every_s) < self._end:
                await asyncio.sleep(begins - time.monotonic())
                task = asyncio.create_task(play(next(self._numbers)))
                playing.add(task)
                task.add_done_callback(playing.discard)
            await asyncio.gather(*playing)
        finally:
            for task in playing:
                task.cancel()

    async def _probe(self, path: str) -> None:
        connection = self._connect()[0]
        while time.monotonic() < self._end:
            turn = Turn(conversation="", turn=0, kind=path, started=time.monotonic())
            turn.status, headers = await connection.request("GET", path)
            async for _ in connection.pieces(headers):
                pass
            turn.ended = time.monotonic()
            self.turns.append(turn)
            await asyncio.sleep(_PROBE_S)

    async def _conversation(self, connections: list[Connection], number: int, kind: str) -> bool:
        """Play one conversation; False where a request failed."""
        load = self.load
        lines = load.lines
        messages: list[dict[str, str]] = [{"role": "system", "content": load.system}] if load.system else []
        new, identity = list(messages), None
        lengths = Random(number)
        for index in range(load.long_turns if kind == "long" else load.turns):
            if time.monotonic() >= self._end:
                break
            line = lines[(7 * number + index) % len(lines)]
            opening = f"{number} {load.long_line}" if kind == "long" and index == 0 else line
            new.append({"role": "user", "content": opening})
            messages.append(new[-1])
            body: dict[str, Any] = {
                "model": load.model,
                "messages": new if load.by_id else messages,
                "stream": True,
                "temperature": 1.0,
                "max_tokens": load.max_tokens + lengths.randint(-load.vary_tokens, load.vary_tokens),
            }
            if load.key:  # transformers serve has no keys, and sends the usage unasked
                body["stream_options"] = {"include_usage": True}
            if identity:
                body["conversation_id"] = identity
            turn, identity, text = await self._ask(connections, body, f"{number}", index, kind)
            if turn.error is not None:
                return False
            messages.append({"role": "assistant", "content": text})
            new = []
        return True

    async def _ask(
        self, connections: list[Connection], body: dict[str, Any], conversation: str, index: int, kind: str
    ) -> tuple[Turn, str | None, str]:
        """One turn; refused ones are asked again as the load says."""
        data, attempt = json.dumps(body).encode(), 0
        turn = self._begin(conversation, index, kind)
        while True:
            connection = connections[attempt % len(connections)]
            wait_s, events = await self._exchange(connection, data, turn)
            attempt += 1
            lost = turn.status in (0, _REFUSED) and not turn.events
            if self.load.redispatch and turn.error is not None and lost and attempt < 2 * len(connections):
                turn.status, turn.error = 0, None
                continue
            if wait_s is None or not self.load.obeys or time.monotonic() + wait_s >= self._end:
                break
            await asyncio.sleep(wait_s)
            turn = self._begin(conversation, index, kind)
        first = json.loads(events[0]) if events and turn.error is None else {}
        turn.version = first.get("system_fingerprint")
        if self.load.by_id:
            return turn, first["conversation_id"] if first else None, ""
        return turn, None, "".join(_content(event) for event in events)

    def _begin(self, conversation: str, index: int, kind: str) -> Turn:
        self.turns.append(Turn(conversation=conversation, turn=index, kind=kind, started=time.monotonic()))
        return self.turns[-1]

    async def _exchange(self, connection: Connection, data: bytes, turn: Turn) -> tuple[float | None, list[bytes]]:
        """Send one request and read its response; returns the time to wait after a refusal, and the events."""
        events: list[bytes] = []
        rest = b""
        try:
            turn.status, headers = await connection.request("POST", "/v1/chat/completions", data)
            async for piece in connection.pieces(headers):
                rest += piece
                if turn.status != 200:
                    continue
                *complete, rest = rest.split(b"\n\n")
                now = time.monotonic()
                for event in complete:
                    event = event.removeprefix(b"data: ")
                    if not event.startswith(b"{"):
                        continue
                    events.append(event)
                    if _TEXT.search(event):
                        turn.events.append(now)
                    if event.startswith(b'{"error"'):
                        turn.error = event.decode()
                    if _USAGE.search(event):
                        usage = json.loads(event)["usage"]
                        turn.tokens, turn.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
        except (OSError, EOFError, ValueError) as error:
            connection.close()
            turn.error = f"{type(error).__name__}: {error}"
            return None, events
        except asyncio.CancelledError:
            connection.close()
            raise
        turn.ended = time.monotonic()
        if turn.status != 200:
            turn.error = rest.decode(errors="replace")[:300]
            return (float(headers["retry-after-ms"]) / 1000 if "retry-after-ms" in headers else None), events
        return None, events


def _content(event: bytes) -> str:
    choices = json.loads(event).get("choices")
    return (choices[0]["delta"].get("content") or "") if choices else ""


def play(load: Load) -> list[Turn]:
    """Play a load in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.serve_load"],
        cwd=ROOT,
        input=load.model_dump_json(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return _TURNS.validate_json(process.stdout)


_TURNS = TypeAdapter(list[Turn])


if __name__ == "__main__":
    played = asyncio.run(Generator(Load.model_validate_json(sys.stdin.read())).run())
    sys.stdout.buffer.write(_TURNS.dump_json(played))
