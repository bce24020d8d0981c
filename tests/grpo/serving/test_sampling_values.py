"""Extremes of all sampling values that the API accepts, beside ordinary requests that must not notice."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.grpo.serving.chat_servers import ChatServer, chat_server

SHARED: dict[str, tuple[Any, ...]] = {
    "temperature": (None, 0, 5e-324, 1e-300, 1e-46, 3e-38, 1e-5, 2),
    "top_p": (None, 5e-324, 1e-300, 1e-46, 0.5, 1 - 2**-53, 1),
    "seed": (None, -(2**63), -1, 0, 2**63 - 1),
    "n": (1, 1, 1, 2, 16),
    "stop": (None, [], ["e", " ", "\n", "\x00"], "x" * 1024),
    "presence_penalty": (None, 0, 0.0, -0.0),
    "frequency_penalty": (None, 0, -0.0),
    "logit_bias": (None, {}),
    "max_tokens": (1, 3),
}
CHAT: dict[str, tuple[Any, ...]] = {**SHARED, "logprobs": (None, False, True)}
COMPLETION: dict[str, tuple[Any, ...]] = {
    **SHARED,
    "logprobs": (None, 0, 1, 20),
    "top_k": (None, -1, 0, 1, 2**31 - 1),
    "min_p": (None, 0, -0.0),
    "repetition_penalty": (None, 1, 1.0),
    "stop_token_ids": (None, [], [0, 1, 0]),
    "max_tokens": (None, 1, 3, 2**31, 10**30),
}
REFUSED: dict[str, tuple[str, ...]] = {
    "temperature": ("-1e-300", "NaN", "Infinity", "1e999", "2.0000001"),
    "top_p": ("0", "-0.0", "1e-400", "NaN", "1.0000001"),
    "seed": (str(2**63), str(-(2**63) - 1), "1e300"),
    "n": ("0", "17", str(10**30)),
    "max_tokens": ("0", "-1"),
    "presence_penalty": ("1e-300", "NaN"),
    "frequency_penalty": ("5e-324",),
    "stop": ('""', '["a", ""]'),
}
"""JSON of values that are refused."""
ORDINARY = [f"Where is order {number}?" for number in range(4)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    with chat_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def combinations(values: dict[str, tuple[Any, ...]], count: int, seed: int) -> list[dict[str, Any]]:
    """Each value at least once, in requests whose other values are drawn."""
    rng = random.Random(seed)
    drawn = [{name: rng.choice(choices) for name, choices in values.items()} for _ in range(count)]
    each = itertools.chain.from_iterable(((name, value) for value in choices) for name, choices in values.items())
    for index, (name, value) in enumerate(each):
        drawn[index % count][name] = value
    return [{name: value for name, value in fields.items() if value is not None} for fields in drawn]


async def ordinary(client: httpx.AsyncClient) -> list[str]:
    """Texts of the ordinary completions."""
    answers = await asyncio.gather(
        *(
            client.post("/v1/completions", json={"model": "clerk", "prompt": prompt, "seed": 7, "max_tokens": 24})
            for prompt in ORDINARY
        )
    )
    return [answer.json()["choices"][0]["text"] for answer in answers]


async def by_socket(address: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, str]:
    """Status and last frame of a request over a WebSocket."""
    async with connect(address, additional_headers=headers) as socket:
        await socket.send(json.dumps(body))
        while (frame := await socket.recv()) != "[DONE]":
            if "error" in (answer := json.loads(frame)):
                return answer["status"], str(frame)
        return 200, str(frame)


@pytest.mark.parametrize("route", ["chat", "completions", "socket"])
def test_every_accepted_value_is_answered_and_touches_no_other_request(server: ChatServer, route: str):
    """Four ordinary completions have the same texts beside each batch of extremes as without any."""
    headers = server.headers()
    address = f"{server.url.replace('http', 'ws')}/v1/chat/stream"

    async def send(client: httpx.AsyncClient, fields: dict[str, Any]) -> tuple[int, str]:
        messages = [{"role": "user", "content": "Hello"}]
        if route == "socket":
            return await by_socket(address, headers, {"model": "clerk", "messages": messages, **fields})
        prompt = {"prompt": "Hello"} if route == "completions" else {"messages": messages}
        path = "/v1/completions" if route == "completions" else "/v1/chat/completions"
        content = json.dumps({"model": "clerk", **prompt, **fields})
        answer = await client.post(path, content=content)
        return answer.status_code, answer.text

    async def run() -> None:
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=120) as client:
            alone = await ordinary(client)
            values = COMPLETION if route == "completions" else CHAT
            requests = combinations(values, 20, seed=3)
            for first in range(0, len(requests), 4):
                batch = requests[first : first + 4]
                texts, *answers = await asyncio.gather(ordinary(client), *(send(client, fields) for fields in batch))
                for fields, (status, text) in zip(batch, answers, strict=True):
                    assert status == 200, (fields, text)
                assert texts == alone, batch

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_value_that_is_not_accepted_is_refused_with_its_name(server: ChatServer, path: str):
    """What is not finite, out of range, or has no effect in this server: 400 before any work."""
    prompt = '"prompt": "Hello"' if path == "/v1/completions" else '"messages": [{"role": "user", "content": "Hello"}]'
    for name, values in REFUSED.items():
        for value in values:
            content = f'{{"model": "clerk", {prompt}, "{name}": {value}}}'
            answer = httpx.post(f"{server.url}{path}", content=content, headers=server.headers("refused"), timeout=60)
            assert answer.status_code == 400, (name, value, answer.text)
            assert name in answer.json()["error"]["message"], (name, value, answer.text)
