from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from grpo.agents.memory import ConversationMemory
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.serving.erasure import erase
from tests import waiting
from tests.grpo.serving.chat_servers import CLERK, ChatServer, chat_server, clerk
from tests.grpo.serving.test_app import engine_pid

until = partial(waiting.until, patience_s=240)
QUESTION: Any = {"role": "user", "content": "Hello, where is my order 1234?"}


@contextmanager
def stopped_engine(server: ChatServer) -> Iterator[Callable[[], None]]:
    """An engine process that is stopped until the function that is yielded is called, or the block ends."""
    pid = engine_pid(server)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield lambda: os.kill(pid, signal.SIGCONT)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_turn_in_progress_ends_with_the_erasure_of_its_user(tmp_path: Path):
    """The client gets an error, the log has the status and nothing of the text; another user is answered."""
    with chat_server(tmp_path) as server, ThreadPoolExecutor(4) as pool, stopped_engine(server) as go_on:
        client = server.client()

        def ask(user: str, **settings: Any) -> Any:
            return client.chat.completions.create(model="clerk", messages=[QUESTION], user=user, **settings)

        def complete(user: str) -> Any:
            return client.completions.create(model="clerk", prompt="Hello, order 1234", user=user, max_tokens=20)

        whole, other, raw = pool.submit(ask, "ann"), pool.submit(ask, "bob"), pool.submit(complete, "ann")
        stream = ask("ann", stream=True)
        until("the requests", lambda: server.service.requests == 4)
        answer = httpx.delete(f"{server.url}/v1/users/ann", headers=server.headers(), timeout=60).json()
        assert (answer["found"], answer["ended"], answer["erased"]) == (True, 3, 0)
        for ended in (whole, raw):
            with pytest.raises(openai.APIStatusError) as refused:
                ended.result()
            assert (refused.value.status_code, refused.value.code) == (410, "conversation_erased")
        with pytest.raises(openai.APIError, match="was erased while this turn ran"):
            list(stream)
        go_on()
        assert other.result().choices[0].message
        until("all turns in the log", lambda: len(server.turns()) == 4)
        turns = server.turns()
        assert sorted(turn.status for turn in turns) == ["answered", "erased", "erased", "erased"]
        erased = [turn for turn in turns if turn.status == "erased"]
        assert {(turn.user, turn.turns, len(turn.token_ids), turn.tools) for turn in erased} == {("", (), 0, ())}
        assert len(server.service.conversations) == 1
        assert server.service.counts.turns["erased"] == 3


def test_the_erasure_of_another_process_ends_turns_and_memory(tmp_path: Path):
    """As `grpo erase` beside a server: within a second the turn ends, and the conversation is not known any more."""
    agent = MultiTurnAgent(AgentConfig(model_name=str(CLERK)), memory=ConversationMemory())
    with chat_server(tmp_path, lambda current: None if current else clerk(agent=agent)) as server:
        client, agent = server.client(), server.service.versions.loaded[0].served.agent

        def ask(**settings: Any) -> Any:
            return client.chat.completions.create(model="clerk", messages=[QUESTION], user="ann", **settings)

        first = ask(max_tokens=2)
        assert agent.memory is not None
        (known,) = agent.memory._users
        assert known.endswith("/ann")
        with ThreadPoolExecutor(1) as pool, stopped_engine(server):
            running = pool.submit(ask, extra_body={"conversation_id": first.conversation_id})
            until("the request", lambda: server.service.requests == 1)
            receipt = erase(server.folder / "log", user="ann", home=tmp_path)
            assert receipt is not None
            assert receipt.turns == 1
            with pytest.raises(openai.APIStatusError) as refused:
                running.result()
        assert refused.value.status_code == 410
        assert not agent.memory._users
        with pytest.raises(openai.NotFoundError):
            ask(extra_body={"conversation_id": first.conversation_id})
        until("the log", lambda: [turn.status for turn in server.turns()] == ["erased"])


def test_a_completion_that_is_being_logged_is_answered_410_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is generated, but its record is not written yet when its user is erased."""
    with chat_server(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        record, begun, may_write = server.service.record, threading.Event(), threading.Event()

        async def slow_record(*arguments: Any) -> None:
            begun.set()
            await asyncio.to_thread(may_write.wait, 240)
            await record(*arguments)

        monkeypatch.setattr(server.service, "record", slow_record)
        client = server.client()
        answer = pool.submit(
            client.completions.create, model="clerk", prompt="Hello, order 1234", user="ann", max_tokens=4
        )
        assert begun.wait(240)
        receipt = httpx.delete(f"{server.url}/v1/users/ann", headers=server.headers(), timeout=60).json()
        may_write.set()
        assert receipt["ended"] == 1
        with pytest.raises(openai.APIStatusError) as refused:
            answer.result()
        assert (refused.value.status_code, refused.value.code) == (410, "conversation_erased")
