"""Simulated users of a plain OpenAI client, whose requests name no conversation, and how they were joined.

Users say the same few words under one key, and their requests interleave. They retry, regenerate, change what they or
the model said, trim white space and return results of calls. The turn that a request goes on from is known here by the
ids of the responses, and read from the log as the parent of each turn:

    right      the parent is that turn, or none where the conversation has begun or its history was changed
    missed     the turn has no parent: another one with the same messages was answered, so that it would be a guess
    wrong      any other parent

`python -m tests.fuzz.identity` simulates 1000 users and keeps the table in docs/internals/reliability.md.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai

from grpo.learner.served_logprobs import check_served
from grpo.log.folder import ServedLog
from grpo.policy.catalog import load_weights
from tests.benchmarks.page import Table, here
from tests.grpo.serving.chat_servers import CLERK, ChatServer, chat_server

USERS, SEED, CLIENTS = 1000, 17, 8
OPENINGS = ("Hello, where is my order 1234?", "I want a refund.", "Hello", "My parcel is late, what can I do?")
FOLLOWING = ("Thanks.", "And when?", "Please check again.", "No, that is wrong.")
TOOLS = [{"type": "function", "function": {"name": "look_up", "description": "Look an order up."}}]
PLACES = ("right", "missed", "wrong")
Step = Generator[list[dict[str, Any]], Any, None]
"""Requests of one user, each answered with its response."""


class User:
    """One conversation with its changes; `expected` has the turn before each of its responses, by their ids."""

    def __init__(self, draw: random.Random, *, turns: int) -> None:
        self.expected: dict[str, tuple[str, str | None]] = {}
        """Kind of the request, and the turn that it goes on from."""
        self._draw, self._turns = draw, turns
        self._trims = draw.randrange(3) == 0
        self._messages: list[dict[str, Any]] = []
        self._parents: list[str | None] = [None]
        """Turn that each prefix of the conversation ends with, by the number of its replies."""

    def requests(self) -> Step:
        """Send one turn after another."""
        self._say(self._draw.choice(OPENINGS))
        for _ in range(self._turns):
            reply = yield from self._ask()
            if self._draw.randrange(10) == 0:  # the answer was lost, or another one is wanted
                reply = yield from self._ask("again")
            if self._draw.randrange(12) == 0 and self._messages[-1]["role"] == "user":
                self._messages[-1] = {"role": "user", "content": self._draw.choice(FOLLOWING) + " Really."}
                reply = yield from self._ask("edited question")
            self._go_on(reply)
            if self._draw.randrange(15) == 0 and self._messages[-2].get("content"):
                yield from self._change_history()

    def _ask(self, kind: str = "next") -> Generator[list[dict[str, Any]], Any, Any]:
        reply = yield self._sent()
        if self._parents[-1] is None and kind == "next":
            kind = "first" if len(self._parents) == 1 else "changed reply"
        self.expected[reply.id] = (kind, self._parents[-1])
        return reply

    def _sent(self) -> list[dict[str, Any]]:
        """The conversation, whose earlier texts some clients trim, and others pad."""
        *earlier, last = self._messages
        if not self._trims:
            return self._messages
        return [*({**message, "content": (message["content"] or "").strip()} for message in earlier), last]

    def _say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": f" {text}\n" if self._trims else text})

    def _go_on(self, reply: Any) -> None:
        message = reply.choices[0].message
        self._parents.append(reply.id)
        calls = [call.model_dump() for call in message.tool_calls or ()]
        echo = {"role": "assistant", "content": message.content}
        self._messages.append(echo | ({"tool_calls": calls} if calls else {}))
        results = [{"role": "tool", "tool_call_id": call["id"], "content": '{"status": "shipped"}'} for call in calls]
        self._messages += results
        if not results:
            self._say(self._draw.choice(FOLLOWING))

    def _change_history(self) -> Generator[list[dict[str, Any]], Any, None]:
        """Change the words of the last reply: no turn has said them, so that none goes on."""
        position = max(k for k, message in enumerate(self._messages) if message["role"] == "assistant")
        text = self._messages[position]["content"]
        self._messages[position] = {**self._messages[position], "content": f"{text} ({self._draw.random()})"}
        self._parents.append(None)
        reply = yield from self._ask()
        self._go_on(reply)


def simulate(server: ChatServer, *, users: int, seed: int, turns: int, temperature: float) -> dict[str, Counter[str]]:
    """Places of the turns in the log by the kind of their request: right, missed or wrong."""
    client, draw, lock = server.client("plain"), random.Random(seed), threading.Lock()
    people = [User(random.Random(f"{seed} {number}"), turns=turns) for number in range(users)]
    waiting: list[tuple[Step, Any]] = [(person.requests(), None) for person in people]

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                steps, reply = waiting.pop(draw.randrange(len(waiting)))
            try:
                messages = next(steps) if reply is None else steps.send(reply)
            except StopIteration:
                continue
            reply = _answer(client, messages, temperature)
            with lock:
                waiting.append((steps, reply))

    with ThreadPoolExecutor(CLIENTS) as pool:
        for worker in [pool.submit(work) for _ in range(CLIENTS)]:
            worker.result()
    parents = {f"chatcmpl-{turn.id}": turn.parent for turn in server.turns()}
    places: dict[str, Counter[str]] = {}
    for person in people:
        for response, (kind, before) in person.expected.items():
            parent = parents[response]
            wanted = None if before is None else before.removeprefix("chatcmpl-")
            place = "right" if parent == wanted else "missed" if parent is None else "wrong"
            places.setdefault(kind, Counter())[place] += 1
    return places


def _answer(client: openai.OpenAI, messages: list[dict[str, Any]], temperature: float) -> Any:
    return client.chat.completions.create(
        model="clerk",
        messages=messages,  # type: ignore[arg-type]
        tools=TOOLS,  # type: ignore[arg-type]
        temperature=temperature,
        max_tokens=12,
    )


def total(places: dict[str, Counter[str]]) -> Counter[str]:
    """Places of all kinds."""
    return sum(places.values(), Counter())


def table(places: dict[str, Counter[str]]) -> Table:
    """One row for each kind of request."""
    rows = [(kind, counts.total(), *(counts[place] for place in PLACES)) for kind, counts in sorted(places.items())]
    counts = total(places)
    rows.append(("**all**", counts.total(), *(counts[place] for place in PLACES)))
    return Table(
        head=("request", "turns", *PLACES),
        rows=tuple(tuple(f"{cell:,}" if isinstance(cell, int) else cell for cell in row) for row in rows),
    )


def main() -> None:
    """Simulate users, and keep the table unless their number or a temperature was named."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.identity")
    parser.add_argument("--users", type=int)
    parser.add_argument("--temperature", type=float)
    arguments = parser.parse_args()
    users, begun = arguments.users or USERS, time.monotonic()
    temperature = TEMPERATURE if arguments.temperature is None else arguments.temperature
    with tempfile.TemporaryDirectory() as folder, chat_server(Path(folder)) as server:
        places = simulate(server, users=users, seed=SEED, turns=4, temperature=temperature)
        joined = server.service.counts.joined
        records = ServedLog(Path(folder) / "log").read()
        check = check_served(records, lambda _: load_weights(str(CLERK)), model="clerk", turns=users, seed=SEED)
    text, counts = table(places).markdown(), total(places)
    sys.stdout.write(f"{text}\n{dict(joined)}\n{check}\n")
    if arguments.users is None and arguments.temperature is None:
        from tests.fuzz.__main__ import keep

        section = TEXT.format(
            users=users, seed=SEED, temperature=temperature, share=counts["right"] / counts.total(), check=check
        )
        measured = f"Measured on {here()}, in {time.monotonic() - begun:.0f} s."
        keep("\n\n".join((section, text, measured)), section_title="## Conversations of clients without ids")
    raise SystemExit(bool(counts["wrong"]))


TEMPERATURE = 2.0
"""At 1.0 the tiny model says the same few words to most users, which no server can tell apart."""
TEXT = """\
Written by `make fuzz` (`tests/fuzz/identity.py`), seed {seed}. {users:,} users of OpenAI's client under one key, who
send neither ids nor names, say the same few words to the tiny model at temperature {temperature:g}. Their requests
alternate at random. They go on, ask again, change their question or the model's reply, trim white space, and return
results of calls. A turn is right if its parent in the log is the turn that the user went on from, or if it has no
parent, and is a first turn or follows a changed reply. It is missed if the server began another conversation, because
two turns had the same messages. It is wrong if it has any other parent.

**{share:.2%} right.** Log-probabilities of {check.turns:,} of these turns, {check.tokens:,} sampled tokens, computed
again with the weights that they claim (`grpo verify-log`), differ by at most {check.difference:.1e} nats."""


if __name__ == "__main__":
    main()
