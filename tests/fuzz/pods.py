"""Conversations over several servers behind haproxy, which are killed and whose version changes while they answer.

Chats send one turn after another through haproxy, half of them with the id of their conversation and half with all
messages and without an id, half of each as streams. A request that fails for now (409, 502, 503, a connection that
breaks) is sent again, as a client's own retry does. The log says afterwards what became of each turn:

    joined     its conversation is the one of the chat, and its parent the turn that the chat had been given before
    second     it begins another conversation, or goes on from another turn
    unanswered a turn in the log that no chat was given: its server was killed between the log and the answer

`python -m tests.fuzz.pods` plays 10,000 turns on 2 and on 10 servers and keeps the table
in docs/internals/reliability.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from grpo.log.compaction import compact
from grpo.log.folder import ServedLog
from grpo.log.join import join
from grpo.log.records import ServedTurn
from grpo.serving.access.keys import KeyStore
from tests.benchmarks.page import Table, here
from tests.e2e.postgres import Cluster, postgres
from tests.fuzz.pod_process import MODEL, checksum, serve
from tests.haproxy import HAPROXY, haproxy

TURNS, SERVERS, SEED = 10_000, (2, 10), 5
CHATS, TURNS_OF_A_CHAT = 24, 10
_FOR_NOW = frozenset({409, 502, 503, 504})
_PAUSE_S, _PATIENCE_S = 0.1, 120.0


def _free_ports() -> Iterator[int]:
    """Ports below those of outgoing connections, one of which could take the port of a server that was killed."""
    for port in range(random.randrange(20_000, 28_000), 32_768):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            yield port


class Pods:
    """Servers of one log and one database, behind haproxy."""

    def __init__(self, folder: Path, cluster: Cluster, *, count: int) -> None:
        self.folder = folder
        self.database = cluster.database(f"pods_{folder.name.replace('-', '_')}")
        self.secret = KeyStore(folder / "keys.json").create("shop", ["chat", "feedback", "admin"])
        self.port, *self.ports = itertools.islice(_free_ports(), count + 1)
        self._processes: dict[int, Any] = {}
        self._context = multiprocessing.get_context("forkserver")  # imports once, for all servers
        self._context.set_forkserver_preload(["tests.fuzz.pod_process"])
        self.promote(1)

    @property
    def url(self) -> str:
        """Address of haproxy."""
        return f"http://127.0.0.1:{self.port}"

    def promote(self, version: int) -> None:
        """Name the version that all servers load at their next look."""
        partial = self.folder / ".version"
        partial.write_text(f"{version}\n", encoding="utf-8")
        partial.replace(self.folder / "version")

    def start(self, port: int) -> None:
        """Start one server."""
        process = self._context.Process(target=serve, args=(self.folder, port, self.database), daemon=True)
        process.start()
        self._processes[port] = process

    def kill(self, port: int) -> None:
        """Kill one server, as a machine does that runs out of memory."""
        self._processes[port].kill()
        self._processes[port].join()

    def stop(self) -> None:
        """End all servers, which close their segments of the log."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join()

    def models(self) -> list[str | None]:
        """Version of new conversations of each server; None for one that is not ready."""
        models = []
        for port in self.ports:
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/ready", timeout=30)
            except httpx.HTTPError:
                models.append(None)
            else:
                models.append(answer.json()["model"] if answer.status_code == 200 else None)
        return models

    def wait(self, version: int) -> float:
        """Wait until all servers answer new conversations with a version; returns the seconds."""
        begun = time.monotonic()
        while set(self.models()) != {f"{MODEL}/{version}"}:
            if time.monotonic() - begun > _PATIENCE_S:
                raise AssertionError(f"version {version} is not on all servers: {self.models()}")
            time.sleep(0.05)
        return time.monotonic() - begun


@contextmanager
def running_pods(folder: Path, cluster: Cluster, *, count: int) -> Iterator[Pods]:
    """Serve with so many servers behind haproxy while the block runs."""
    if HAPROXY is None:
        raise SystemExit("haproxy is not installed: apt-get install haproxy")
    folder.mkdir(parents=True, exist_ok=True)
    pods = Pods(folder, cluster, count=count)
    for port in pods.ports:
        pods.start(port)
    with haproxy(pods.port, pods.ports, folder, retry_on="conn-failure 503", connect_s=2, look_ms=250):
        try:
            pods.wait(1)
            yield pods
        finally:
            pods.stop()


@dataclass(slots=True, kw_only=True)
class Chat:
    """One chat: what it was given."""

    by_id: bool
    streams: bool
    conversations: list[str] = field(default_factory=list)
    """Id of the conversation with each answer."""
    turns: list[str] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    fingerprints: list[str] = field(default_factory=list)


async def play(pods: Pods, *, turns: int, seed: int = SEED) -> tuple[list[Chat], Counter[str]]:
    """Play so many turns; returns the chats, and the statuses of all answers."""
    draw, statuses = random.Random(seed), Counter[str]()
    chats = [Chat(by_id=k % 2 == 0, streams=k // 2 % 2 == 0) for k in range(-(-turns // TURNS_OF_A_CHAT))]
    waiting = iter(chats)

    async def work(client: httpx.AsyncClient) -> None:
        for chat in waiting:
            for number in range(TURNS_OF_A_CHAT):
                await _ask(client, chat, f"Question {number} of {draw.getrandbits(64):x}.", statuses)

    headers = {"Authorization": f"Bearer {pods.secret}"}
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=pods.url, headers=headers, timeout=60))
            for _ in range(CHATS)
        ]
        await asyncio.gather(*map(work, clients))
    return chats, statuses


async def _ask(client: httpx.AsyncClient, chat: Chat, text: str, statuses: Counter[str]) -> None:
    question = {"role": "user", "content": text}
    body: dict[str, Any] = {"model": MODEL, "stream": chat.streams}
    if chat.by_id and chat.conversations:
        body |= {"messages": [question], "conversation_id": chat.conversations[-1]}
    else:
        body |= {"messages": [*chat.messages, question]}
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        answer = await _send(client, body, statuses)
        if answer is not None:
            break
        if time.monotonic() > deadline:
            raise AssertionError(f"no answer within {_PATIENCE_S:.0f} s: {dict(statuses)}")
        await asyncio.sleep(_PAUSE_S)
    turn, conversation, content, fingerprint = answer
    chat.turns.append(turn)
    chat.conversations.append(conversation)
    chat.fingerprints.append(fingerprint)
    chat.messages += [question, {"role": "assistant", "content": content}]


async def _send(
    client: httpx.AsyncClient, body: dict[str, Any], statuses: Counter[str]
) -> tuple[str, str, str, str] | None:
    """Turn, conversation, content and version of an answer; None for one that failed for now."""
    try:
        response = await client.post("/v1/chat/completions", json=body)
    except httpx.HTTPError:
        statuses["connection lost"] += 1
        return None
    code = str(response.status_code)
    if response.status_code in _FOR_NOW:
        with_code = response.headers.get("content-type", "").startswith("application/json")
        statuses[f"{code} {response.json()['error']['code']}" if with_code else code] += 1
        return None
    if response.status_code != 200:
        statuses[code] += 1
        raise AssertionError(f"{code}: {response.text}")
    if not body["stream"]:
        statuses[code] += 1
        whole = response.json()
        (choice,) = whole["choices"]
        name = (whole["id"].removeprefix("chatcmpl-"), whole["conversation_id"])
        return (*name, choice["message"]["content"], whole["system_fingerprint"])
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        statuses["stream broken"] += 1
        return None
    statuses[code] += 1
    chunks = [json.loads(event) for event in events[:-1]]
    deltas = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    name = (chunks[0]["id"].removeprefix("chatcmpl-"), response.headers["x-conversation-id"])
    return (*name, "".join(deltas), chunks[0]["system_fingerprint"])


async def kill_in_turn(pods: Pods, *, every_s: float, seed: int = SEED) -> int:
    """Kill one server after another, and start it again, until cancelled; returns the number of kills."""
    draw, kills = random.Random(seed), 0
    try:
        while True:
            await asyncio.sleep(every_s)
            port = draw.choice(pods.ports)
            await asyncio.to_thread(pods.kill, port)
            kills += 1
            await asyncio.sleep(every_s / 2)
            await asyncio.to_thread(pods.start, port)
    except asyncio.CancelledError:
        return kills


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of the turns."""

    answered: int
    second: int
    """Turns that the log has in another conversation, or after another turn."""
    wrong_tokens: int
    """Turns whose model has read other tokens than were logged."""
    versions: int
    """Chats on two versions."""
    unanswered: int
    """Turns in the log that no chat was given."""
    missing: int
    """Turns that a chat was given and that are not in the log."""
    joined: int
    """Conversations that retraining joins from the log and that a chat was given whole."""


def judge(log: Path, chats: Sequence[Chat]) -> Verdict:
    """Read the log, after compaction, and compare it with what the chats were given."""
    compact(log)
    records = list(ServedLog(log).read())
    turns = {record.id: record for record in records if isinstance(record, ServedTurn) and record.status == "answered"}
    second = wrong = missing = 0
    for chat in chats:
        ids: list[int] = []
        for name, parent in zip(chat.turns, (None, *chat.turns), strict=False):
            if (turn := turns.get(name)) is None:
                missing += 1
                continue
            second += turn.parent != parent or turn.conversation_id != chat.conversations[0]
            read = sum(itertools.takewhile(bool, (not each for each in turn.loss_mask)))
            ids += turn.token_ids.tolist()
            seen = ids[: len(ids) - len(turn.token_ids) + read]
            wrong += turn.turns[-1].message.content.split()[1] != checksum(seen)
    given = {name for chat in chats for name in chat.turns}
    chains = {tuple(turn.id for turn in conversation.turns) for conversation in join(records).conversations}
    return Verdict(
        answered=len(given),
        second=second,
        wrong_tokens=wrong,
        versions=sum(len(set(chat.fingerprints)) > 1 for chat in chats),
        unanswered=len(turns.keys() - given),
        missing=missing,
        joined=sum(tuple(chat.turns) in chains for chat in chats),
    )


async def play_with_kills(
    pods: Pods, *, turns: int, kill_every_s: float
) -> tuple[list[Chat], Counter[str], int, float]:
    """Play turns while servers are killed, then promote a version and play half as many without kills.

    Returns the chats, the statuses, the number of kills, and the seconds until all servers had the version.
    """
    killing = asyncio.create_task(kill_in_turn(pods, every_s=kill_every_s))
    chats, statuses = await play(pods, turns=turns // 2)
    killing.cancel()
    kills = await killing
    for port in pods.ports:
        if not pods._processes[port].is_alive():
            pods.start(port)
    await asyncio.to_thread(pods.wait, 1)
    playing = asyncio.create_task(play(pods, turns=turns // 2, seed=SEED + 1))
    await asyncio.sleep(1.0)
    pods.promote(2)
    swap_s = await asyncio.to_thread(pods.wait, 2)
    more, counts = await playing
    return [*chats, *more], statuses + counts, kills, swap_s


def main() -> None:
    """Play on 2 and on 10 servers, and keep the table unless the number of turns or servers was named."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.pods")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--servers", type=int, action="append")
    arguments = parser.parse_args()
    rows, begun, failed = [], time.monotonic(), False
    with postgres() as cluster, tempfile.TemporaryDirectory() as scratch:
        for count in arguments.servers or SERVERS:
            folder, started = Path(scratch) / f"of-{count}", time.monotonic()
            with running_pods(folder, cluster, count=count) as pods:
                playing = play_with_kills(pods, turns=arguments.turns or TURNS, kill_every_s=4.0)
                chats, statuses, kills, swap_s = asyncio.run(playing)
            verdict = judge(folder / "log", chats)
            sys.stdout.write(f"{count} servers: {verdict}, {dict(statuses)}, swap in {swap_s:.1f} s\n")
            failed = failed or bool(verdict.second or verdict.wrong_tokens or verdict.missing or statuses["404"])
            again = statuses.total() - statuses["200"]
            rows.append(
                (
                    *(count, verdict.answered, kills, statuses["404"], verdict.second, verdict.wrong_tokens),
                    *(verdict.versions, f"{verdict.joined} of {len(chats)}", verdict.unanswered, again),
                    *(f"{swap_s:.1f} s", f"{time.monotonic() - started:.0f} s"),
                )
            )
    cells = tuple(tuple(f"{cell:,}" if isinstance(cell, int) else cell for cell in row) for row in rows)
    text = Table(head=HEAD, rows=cells).markdown()
    sys.stdout.write(f"{text}\n")
    if arguments.turns is None and arguments.servers is None:
        from tests.fuzz.__main__ import keep

        measured = f"Measured on {here()}, in {time.monotonic() - begun:.0f} s."
        keep("\n\n".join((SECTION, text, measured)), section_title="## Conversations over several servers")
    raise SystemExit(failed)


HEAD = (
    *("servers", "turns", "kills", "404", "joined wrongly", "other tokens than logged", "chats on two versions"),
    *("whole in the log", "logged, not received", "requests sent again", "swap on all servers", "time"),
)
SECTION = """\
Written by `python -m tests.fuzz.pods` (`tests/fuzz/pods.py`). Chats of ten turns go through haproxy, which sends each
request to the next server. Half of the chats send the id of their conversation and half send no id. Half of each are
streamed. In the first half of the turns a server is killed (SIGKILL) every four seconds and started again two seconds
later. In the second half another version is promoted, for which the servers look every second. The model replies with a
checksum of the tokens that it has read, and the test compares this checksum with the tokens in the log.

A turn is joined wrongly if the log has it in another conversation or after another turn. It is logged but not received
if its server was killed between the log and the answer."""


if __name__ == "__main__":
    main()
