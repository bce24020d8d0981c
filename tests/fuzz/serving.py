"""Mutated requests to a real server of the tiny model, and what must hold of each.

every request is answered in time, with less than 500, or 503 with the time to wait
every refusal has OpenAI's shape
every frame of a WebSocket is answered, or its connection closed for a reason that is the client's
afterwards no turn is in progress, and a valid request is answered

`python -m tests.fuzz.serving` sends 100,000 and keeps the table in docs/internals/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import httpx
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.benchmarks.page import Table, here
from tests.fuzz.mutate import json_value, mutate_bytes, mutate_json
from tests.fuzz.server_process import FRAME_BYTES, server_process

PATIENCE_S = 60.0
REQUESTS, SEED, CLIENTS = 100_000, 13, 7
WARM_UP, CHUNK = 10_000, 5_000
FAULTS_OF_THE_CLIENT = (1002, 1003, 1007, 1008, 1009, 1013)
"""Codes with which the server may close: protocol, kind of data, text, authorization, size, number."""
QUESTION = {"role": "user", "content": "Hello, where is my order 1234?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": "1"}'}}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "", "parameters": {"type": "object"}}}
CHATS: list[dict[str, Any]] = [
    {"messages": [QUESTION], "seed": 1, "temperature": 0.7, "top_p": 0.9, "stop": ["x"]},
    {"messages": [{"role": "system", "content": "Be short."}, QUESTION], "logprobs": True, "top_logprobs": 2},
    {"messages": [QUESTION], "stream": True, "stream_options": {"include_usage": True}, "user": "ann"},
    {"messages": [QUESTION], "n": 2, "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True},
    {"messages": [QUESTION], "conversation_id": "abc", "metadata": {"conversation_id": "abc"}},
    {"messages": [QUESTION, {"role": "assistant", "content": "Hi"}, QUESTION], "response_format": {"type": "text"}},
    {"messages": [QUESTION, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                  {"role": "tool", "tool_call_id": "c1", "content": "{}"}], "tools": [TOOL], "store": True},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "strategy": "empathetic"},
]  # fmt: skip
COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": "Hello", "logprobs": 2, "n": 2, "stop": "x", "seed": 3},
    {"prompt": [1, 2, 3, 4], "return_token_ids": True, "return_tokens_as_token_ids": True, "top_k": 5, "min_p": 0.0},
    {"prompt": [5, 6], "stop_token_ids": [0], "skip_special_tokens": False, "repetition_penalty": 1.0, "user": "ann"},
]
FEEDBACK: list[dict[str, Any]] = [
    {"rating": 0.5, "comment": "fine"},
    {"turn_id": "abc", "correction": "No.", "success": False, "id": "f1"},
    {"expected": {"keywords": ["refund"]}},
]
"""Feedback on a conversation of the client's, see `fuzz`."""
OPERATIONS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/train", {"config": "train/quickstart", "overrides": {"training.iterations": 2}}),
    ("/v1/scale", {"max_requests": 64, "concurrency": 8}),
    ("/v1/scale", {"max_requests": 64, "work_pool": {"name": "cpu", "concurrency_limit": 2}}),
]
TARGETS = ("chat", "completions", "feedback", "operations", "paths", "chat frames", "event frames")


class Server(Protocol):
    """A running server, in this process or in another one."""

    @property
    def url(self) -> str: ...

    def headers(self) -> dict[str, str]:
        """Headers with a key that may do everything."""
        ...


@dataclass(kw_only=True)
class Tally:
    """Answers to the mutated requests of one kind."""

    name: str
    requests: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """By the first digit of the status, `503`, or the code of a close."""
    faults: list[str] = field(default_factory=list)
    """Answers that a sound server does not give."""
    hangs: list[str] = field(default_factory=list)


def fuzz(server: Server, name: str, *, requests: int, seed: int) -> Tally:
    """Send mutated requests of one kind, one after another."""
    tally, draw = Tally(name=name), random.Random(f"{seed} {name}")
    with httpx.Client(base_url=server.url, headers=server.headers(), timeout=PATIENCE_S) as client:
        conversation = _valid_chat(client).headers["x-conversation-id"] if name == "feedback" else ""
        while tally.requests < requests:
            place = f"{name}, seed {seed}, request {tally.requests}"
            try:
                if name.endswith("frames"):
                    _talk(server, tally, draw, place)
                else:
                    _send(client, tally, draw, place, conversation)
            except (httpx.TimeoutException, TimeoutError):
                tally.requests += 1
                tally.hangs.append(place)
            except httpx.TransportError as error:
                tally.requests += 1
                tally.faults.append(f"{place}: {error!r}")
    return tally


def fuzz_all(server: Server, *, requests: int, seed: int) -> list[Tally]:
    """Send mutated requests of all kinds, several at once; then no turn may be left, and a valid one is answered."""
    share, headers = -(-requests // len(TARGETS)), server.headers()
    with ThreadPoolExecutor(CLIENTS) as pool:
        tallies = list(pool.map(lambda name: fuzz(server, name, requests=share, seed=seed), TARGETS))
    deadline = time.monotonic() + PATIENCE_S
    while _load(server) != (0, 0) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    httpx.post(f"{server.url}/v1/scale", json={"max_requests": 64, "concurrency": 8}, headers=headers, timeout=60)
    with httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_S) as client:
        answer = _valid_chat(client)
    last = Tally(name="afterwards", requests=1, answers=Counter({str(answer.status_code)[0]: 1}))
    left = _load(server)
    if answer.status_code != 200 or left != (0, 0):
        last.faults.append(f"{answer.status_code} {answer.text[:200]}; turns and tokens left: {left}")
    return [*tallies, last]


def _valid_chat(client: httpx.Client) -> httpx.Response:
    """Answer to a request that nobody changed."""
    return client.post("/v1/chat/completions", json={"model": "clerk", "messages": [QUESTION], "max_tokens": 2})


def _load(server: Server) -> tuple[float, float]:
    """Turns and tokens in progress."""
    values = httpx.get(f"{server.url}/v1/metrics", headers=server.headers(), timeout=PATIENCE_S).json()
    return values["grpo_requests_in_progress"], values["grpo_tokens_in_progress"]


def _send(client: httpx.Client, tally: Tally, draw: random.Random, place: str, conversation: str) -> None:
    """One request over HTTP."""
    method, path, content = _request(tally.name, draw, conversation)
    response = client.request(method, path, content=content, headers={"content-type": "application/json"})
    tally.requests += 1
    status = response.status_code
    tally.answers["503" if status == 503 else str(status)[0]] += 1
    if status >= 500 and not (status == 503 and "retry-after" in response.headers):
        tally.faults.append(f"{place}: {status} to {method} {path} {content[:300]!r}: {response.text[:300]}")
    elif status >= 400 and method != "HEAD" and '{"error": {"message": ' not in response.text:
        tally.faults.append(f"{place}: {status} to {method} {path[:80]} without an error: {response.text[:80]}")
    elif response.headers.get("content-type", "").startswith("text/event-stream"):
        last = [line for line in response.text.splitlines() if line][-1]
        if last != "data: [DONE]" and json.loads(last[6:])["error"]["type"] == "server_error":
            tally.faults.append(f"{place}: {last} to {content[:300]!r}")


def _request(name: str, draw: random.Random, conversation: str) -> tuple[str, str, bytes]:
    """Method, path and body of a mutated request."""
    if name == "paths":
        word = draw.choice(("abc", "\x00", "a/b", "..", "é" * 50, "%", "ann", "x" * 3000, str(json_value(draw))[:200]))
        path = draw.choice(("/v1/train/", "/v1/conversations/", "/v1/users/", "/v1/", "/"))
        method = draw.choice(("GET", "DELETE", "DELETE", "POST", "PUT", "HEAD", "PATCH", "OPTIONS"))
        word = quote(word.encode(errors="surrogatepass"), safe=draw.choice(("", "/")))
        return method, path + word, b"" if draw.randrange(2) else b"{}"
    if name == "operations":
        path, body = draw.choice(OPERATIONS)
        return "POST", path, _content(body, draw)
    if name == "feedback":
        return "POST", "/v1/feedback", _content({"conversation_id": conversation, **draw.choice(FEEDBACK)}, draw)
    if name == "completions":
        return (
            "POST",
            "/v1/completions",
            _content({"model": "clerk", "max_tokens": 3, **draw.choice(COMPLETIONS)}, draw),
        )
    return "POST", "/v1/chat/completions", _content({"model": "clerk", "max_tokens": 3, **draw.choice(CHATS)}, draw)


def _content(body: dict[str, Any], draw: random.Random) -> bytes:
    """A valid body as it is, with nodes changed, or with bytes changed."""
    action = draw.randrange(6)
    for _ in range(0 if action == 0 else draw.choice((1, 1, 2, 3))):
        if action < 5:
            body = mutate_json(body, draw)
    try:
        content = json.dumps(body).encode()
    except (ValueError, RecursionError):
        content = b"[" * 100_000
    return mutate_bytes(content, draw) if action == 5 else content


def _talk(server: Server, tally: Tally, draw: random.Random, place: str) -> None:
    """A few frames over one connection."""
    chats = tally.name == "chat frames"
    path = "/v1/chat/stream" if chats else "/v1/events"
    address = f"{server.url.replace('http', 'ws')}{path}"
    with connect(address, additional_headers=server.headers(), max_size=None, close_timeout=PATIENCE_S) as socket:
        try:
            if not chats:
                socket.recv(timeout=PATIENCE_S)
            for _ in range(draw.randrange(1, 6)):
                tally.requests += 1
                socket.send(_frame(draw, chats=chats))
                if draw.randrange(12) == 0:
                    tally.answers["left"] += 1
                    return
                _read(socket, tally, place)
        except ConnectionClosed as closed:
            code = 1006 if closed.rcvd is None else closed.rcvd.code
            tally.answers[str(code)] += 1
            if code not in FAULTS_OF_THE_CLIENT:
                tally.faults.append(f"{place}: closed with {closed}")


def _frame(draw: random.Random, *, chats: bool) -> str | bytes:
    body = {"model": "clerk", "max_tokens": 3, **draw.choice(CHATS)} if chats else {"type": "ping", "n": [1, "x"]}
    body.pop("stream", None)
    content = _content(body, draw)
    if draw.randrange(40) == 0:
        return "x" * (FRAME_BYTES + 1)
    return content if draw.randrange(20) == 0 else content.decode(errors="replace")


def _read(socket: ClientConnection, tally: Tally, place: str) -> None:
    """Frames up to the end of one answer."""
    while True:
        text = socket.recv(timeout=PATIENCE_S)
        frame = text if text == "[DONE]" else json.loads(text)
        if "error" in frame:
            status = frame.get("status", 500)
            tally.answers["503" if status == 503 else str(status)[0]] += 1
            if status >= 500 and not (status == 503 and "retry_after_ms" in frame):
                tally.faults.append(f"{place}: {str(text)[:300]}")
            return
        if frame == "[DONE]" or frame.get("type") == "pong":
            tally.answers["2"] += 1
            return


def _sum(tallies: Sequence[Tally]) -> Tally:
    """Answers of several runs of one kind."""
    return Tally(
        name=tallies[0].name,
        requests=sum(tally.requests for tally in tallies),
        answers=sum((tally.answers for tally in tallies), Counter()),
        faults=[line for tally in tallies for line in tally.faults],
        hangs=[line for tally in tallies for line in tally.hangs],
    )


def table(tallies: list[Tally]) -> Table:
    """One row for each kind of request."""
    columns = ("2", "4", "503")
    rows = [
        (
            tally.name,
            tally.requests,
            *(tally.answers[column] for column in columns),
            sum(count for answer, count in tally.answers.items() if answer not in columns),
            len(tally.faults),
            len(tally.hangs),
        )
        for tally in tallies
    ]
    total = ("**all**", *(sum(int(row[column]) for row in rows) for column in range(1, 8)))
    return Table(
        head=("requests", "sent", "answered", "4xx", "503", "connections ended", "faults", "hangs"),
        rows=tuple(tuple(f"{cell:,}" if isinstance(cell, int) else cell for cell in row) for row in (*rows, total)),
    )


def main() -> None:
    """Fuzz a server, and keep the table unless a number of requests was named."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.serving")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    begun, requests = time.monotonic(), arguments.requests or REQUESTS
    with tempfile.TemporaryDirectory() as folder, server_process(Path(folder)) as server:
        fuzz_all(server, requests=min(WARM_UP, requests), seed=arguments.seed)
        before, tallies = server.rss(), list[Tally]()
        for number in range(-(-requests // CHUNK)):
            chunk = fuzz_all(server, requests=min(CHUNK, requests), seed=arguments.seed + 1 + number)
            tallies = [_sum(of_kind) for of_kind in zip(tallies, chunk, strict=True)] if tallies else chunk
            growth, sent = (server.rss() - before) / 2**20, sum(tally.requests for tally in tallies)
            faults = [line for tally in tallies for line in (*tally.faults, *tally.hangs)]
            sys.stdout.write(f"{sent:,} requests: {growth:.0f} MiB more, {len(faults)} faults and hangs\n")
            sys.stdout.flush()
    text = table(tallies).markdown()
    sys.stdout.write(f"{text}\n")
    sys.stdout.writelines(f"{line}\n" for line in faults)
    if arguments.requests is None:
        from tests.fuzz.__main__ import keep

        seconds = time.monotonic() - begun
        measured = f"Measured on {here()}, in {seconds / 60:.0f} minutes."
        section = TEXT.format(seed=arguments.seed, growth=growth, faults=len(faults), sent=sent)
        keep("\n\n".join((section, text, measured)), section_title="## Fuzzing of the server")
    raise SystemExit(bool(faults))


TEXT = """\
Written by `make fuzz` (`tests/fuzz/serving.py`), seed {seed}. The fuzzer changes values or bytes of valid
requests, of paths and of the frames of WebSockets, and sends them to a real server of the tiny model, several at once.
Some clients of WebSockets leave in the middle of a reply. The column "answered" counts requests that were still valid
after the change. A fault is a status of 500 or above (except 503 with the time to wait), an error without OpenAI's
shape, a connection that is closed because of an error of the server, or a turn that is still in progress at the end. A
hang is a request that takes over a minute. The budget of refused requests (`refused_bytes`) is set so high that it is
never used up, because the server would otherwise refuse most requests unread.

{sent:,} requests: **{faults} faults and hangs**. After them the process of the server has {growth:.0f} MiB more memory
than before. The 10,000 requests that were sent first, to fill its memory of conversations (10,000 tokens here) and its
caches, are not counted."""


if __name__ == "__main__":
    main()
