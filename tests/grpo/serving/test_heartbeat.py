from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import openai
import pytest
import torch

from grpo.config.serving import EngineSettings
from grpo.policy.transformers.model import TransformersPolicy
from tests import waiting
from tests.grpo.serving.chat_servers import ChatServer, chat_server, clerk, load_clerk
from tests.grpo.serving.test_app import chat, engine_pid

until = partial(waiting.until, patience_s=240)
SILENCE_S = 4.0


def status(server: ChatServer) -> tuple[int, str]:
    answer = httpx.get(f"{server.url}/ready", timeout=240)
    return answer.status_code, answer.json()["status"]


def test_a_stopped_engine_is_not_ready_and_its_return_is(tmp_path: Path):
    """503 with the reason, for requests as well, at once; the metric tells how long. No restart is needed."""
    engine = EngineSettings(concurrency=2, longest_silence_s=SILENCE_S)
    with chat_server(tmp_path, engine=engine) as server:
        client, pid = server.client(), engine_pid(server)
        first = chat(client, seed=1)
        os.kill(pid, signal.SIGSTOP)
        try:
            until("the server to notice", lambda: status(server) == (503, "the engine does not answer"))
            for asked in ({}, {"extra_body": {"conversation_id": first.conversation_id}}):
                with pytest.raises(openai.InternalServerError, match="the engine does not answer") as refused:
                    chat(client, **asked)
                assert refused.value.status_code == 503
            values = httpx.get(f"{server.url}/v1/metrics", headers=server.headers(), timeout=240).json()
            assert values['grpo_engine_silent_seconds{model_name="clerk/1"}'] > SILENCE_S
            assert values["grpo_ready"] == 0
            assert httpx.get(f"{server.url}/health", timeout=240).status_code == 200
        finally:
            os.kill(pid, signal.SIGCONT)
        until("the heartbeat", lambda: status(server) == (200, "ready"))
        assert chat(client, seed=1).usage == first.usage
        assert engine_pid(server) == pid


def _load_slow(seconds: float) -> TransformersPolicy:
    """A policy whose first pass takes so long."""
    policy = load_clerk()

    def wait(module: torch.nn.Module, arguments: tuple[object, ...]) -> None:
        time.sleep(seconds)
        hook.remove()

    hook = policy.model.get_input_embeddings().register_forward_pre_hook(wait)
    return policy


def test_a_long_pass_is_not_a_stopped_engine(tmp_path: Path):
    """A pass of twice the longest silence: the server is ready all the time, and the turn is answered."""
    engine = EngineSettings(concurrency=2, longest_silence_s=SILENCE_S)
    slow = partial(clerk, load=partial(_load_slow, 2 * SILENCE_S))
    with chat_server(tmp_path, lambda current: None if current else slow(), engine=engine) as server:
        client, states = server.client(), set()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(chat, client, seed=1)
            while not asked.done():
                states.add(status(server))
                server.wait(0.1)
        assert asked.result().choices
        assert states == {(200, "ready")}
