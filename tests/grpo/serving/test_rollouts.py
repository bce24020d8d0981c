"""Routes of a server that takes rollouts: keys, files by digest, versions by the hash of their weights, turns."""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from starlette.requests import ClientDisconnect

from grpo.config.serving import RolloutServingSettings, ServerSettings
from grpo.policy.policy import Prompt, Sampling
from grpo.policy.servers.protocol import FILES, TURNS, WEIGHTS, WeightsRequest
from grpo.policy.transformers.model import TransformersPolicy
from grpo.renderers.chat_template import Renderer
from grpo.serving.access.guard import Authenticator
from grpo.serving.access.keys import KeyStore
from grpo.serving.engine.weight_files import WeightFiles
from grpo.serving.protocol.api_errors import APIError
from grpo.serving.server import ServerPlaces, build_app, make_connections
from tests.grpo.serving.chat_servers import CLERK, ChatServer, chat_server, load_clerk
from tests.grpo.serving.servers import request as send_raw

BOUND = 2**24
FILES_OF_CLERK = {
    path.name: path.read_bytes() for path in CLERK.iterdir() if path.suffix in (".safetensors", ".json", ".jinja")
}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    with chat_server(
        tmp_path_factory.mktemp("server"), rollouts=RolloutServingSettings(weights_bytes=BOUND)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def clerk() -> TransformersPolicy:
    return load_clerk()


@contextmanager
def trainer_of(server: ChatServer) -> Iterator[httpx.Client]:
    key = server.client("trainer", ("rollout",)).api_key
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        yield client


@pytest.fixture
def trainer(server: ChatServer) -> Iterator[httpx.Client]:
    with trainer_of(server) as client:
        yield client


def put(client: httpx.Client, content: bytes, name: str | None = None) -> httpx.Response:
    return client.put(f"{FILES}/{name or digest(content)}", content=content)


def request(version: str, files: dict[str, bytes]) -> dict[str, Any]:
    return {"version": version, "files": {name: digest(content) for name, content in files.items()}}


def turn(version: str, clerk: TransformersPolicy, **changes: object) -> dict[str, Any]:
    body = {
        "version": version,
        "token_ids": [5, 6, 7],
        "stop_token_ids": sorted(Renderer(clerk.tokenizer).stop_ids),
        "temperature": 0.9,
        "max_new_tokens": 12,
        "seed": 11,
        "turn": 2,
    }
    return {**body, **changes}


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["message"]


def test_a_turn_is_sampled_with_the_numbers_of_its_seed_and_index(tmp_path: Path, clerk: TransformersPolicy):
    """Missing files are named, and sent once; the third turn of a session in this process has the same tokens."""
    rollouts = RolloutServingSettings(weights_bytes=BOUND)
    with chat_server(tmp_path, rollouts=rollouts) as server, trainer_of(server) as trainer:
        assert error_of(trainer.post(TURNS, json=turn(clerk.hash, clerk)))[:2] == (409, "weights_not_loaded")
        weights = request(clerk.hash, FILES_OF_CLERK)
        asked = trainer.post(WEIGHTS, json=weights).json()
        assert asked == {"version": None, "missing": sorted(weights["files"].values()), "max_context": None}
        for content in FILES_OF_CLERK.values():
            assert put(trainer, content).status_code == 201
        loaded = {"version": clerk.hash, "missing": [], "max_context": clerk.max_context}
        assert trainer.post(WEIGHTS, json=weights).json() == loaded
        reply = trainer.post(TURNS, json=turn(clerk.hash, clerk)).json()
        assert not server.turns()  # the log of conversations has none of it

    async def third() -> list[int]:
        async with clerk.sampler(concurrency=1, renderer=Renderer(clerk.tokenizer)) as sampler:
            session = sampler.open()
            session.turns = 2  # type: ignore[attr-defined]
            sampling = Sampling(temperature=0.9, max_new_tokens=12, seed=11)
            return (await session.generate(Prompt(new_ids=[5, 6, 7]), sampling)).token_ids

    assert reply["token_ids"] == asyncio.run(third())
    assert reply["version"] == clerk.hash
    assert len(reply["logprobs"]) == len(reply["token_ids"])


def test_weights_have_the_version_that_the_server_computes(trainer: httpx.Client, clerk: TransformersPolicy):
    """Whatever the request says."""
    for content in FILES_OF_CLERK.values():
        put(trainer, content)
    status, _, message = error_of(trainer.post(WEIGHTS, json=request("0" * 16, FILES_OF_CLERK)))
    assert (status, message) == (
        400,
        f"the files hold the weights {clerk.hash}, not {'0' * 16}. Send all files of one checkpoint",
    )


def test_files_that_are_no_model_are_refused(trainer: httpx.Client):
    """A damaged safetensors file, with the reason of the loader."""
    files = {**FILES_OF_CLERK, "model.safetensors": b"no weights"}
    for content in files.values():
        put(trainer, content)
    status, _, message = error_of(trainer.post(WEIGHTS, json=request("1" * 16, files)))
    assert status == 400
    assert message.startswith("the files are not a model that can be loaded: ")


@pytest.mark.parametrize(
    "name",
    ["model.bin", "model.pt", "modeling.py", "../model.safetensors", ".hidden.json", "a\\b.json", f"{'x' * 200}.json"],
)
def test_only_safetensors_config_and_tokenizer_are_taken(trainer: httpx.Client, name: str):
    """Nothing that could be code, and no path."""
    status, code, message = error_of(trainer.post(WEIGHTS, json=request("0" * 16, {name: b""})))
    assert (status, code) == (400, "invalid_value")
    assert "a file of a model is named NAME.safetensors, NAME.json, NAME.jinja, NAME.txt" in message


def test_a_file_has_its_digest_and_its_bound(trainer: httpx.Client, server: ChatServer):
    """Another digest is refused and not kept; a body above the bound is refused by its head."""
    content = b"{}"
    status, _, message = error_of(put(trainer, content, "0" * 64))
    assert (status, message) == (400, f"the file does not have the sha256 {'0' * 64}. Send it again")
    assert trainer.post(WEIGHTS, json={"version": "0" * 16, "files": {"a.json": "0" * 64}}).json()["missing"]
    key = server.client("trainer").api_key
    head = f"PUT {FILES}/{'0' * 64} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
    answer = send_raw(server.port, f"{head}content-length: {BOUND + 1}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"request_too_large" in answer
    assert error_of(trainer.put(f"{FILES}/{'0' * 64}", content=iter([b"x"])))[:2] == (411, "invalid_header")


def test_a_turn_needs_loaded_weights_and_all_stop_tokens(trainer: httpx.Client, clerk: TransformersPolicy):
    """409 tells a trainer to load them."""
    status, code, _ = error_of(trainer.post(TURNS, json=turn("0" * 16, clerk)))
    assert (status, code) == (409, "weights_not_loaded")
    for content in FILES_OF_CLERK.values():
        put(trainer, content)
    trainer.post(WEIGHTS, json=request(clerk.hash, FILES_OF_CLERK))
    status, code, message = error_of(trainer.post(TURNS, json=turn(clerk.hash, clerk, stop_token_ids=[])))
    assert (status, code) == (400, "unsupported_value")
    assert "turns of this model end with token" in message
    ids = [5] * (clerk.max_context + 1)
    assert error_of(trainer.post(TURNS, json=turn(clerk.hash, clerk, token_ids=ids)))[1] == "context_length_exceeded"


def test_rollouts_need_their_own_scope(server: ChatServer):
    """No other scope opens them, and theirs opens nothing else."""
    for name in ("chat", "feedback", "outcomes", "metrics", "admin"):
        headers = {"Authorization": f"Bearer {server.client(f'only-{name}', (name,)).api_key}"}
        for method, path in (("PUT", f"{FILES}/{'0' * 64}"), ("POST", WEIGHTS), ("POST", TURNS)):
            response = httpx.request(method, server.url + path, headers=headers, content=b"", timeout=60)
            assert error_of(response)[:2] == (403, "insufficient_scope")
            assert httpx.request(method, server.url + path, content=b"", timeout=60).status_code == 401
    headers = {"Authorization": f"Bearer {server.client('only-rollout', ('rollout',)).api_key}"}
    assert httpx.get(f"{server.url}/v1/models", headers=headers, timeout=60).status_code == 403


def test_a_server_takes_no_rollouts_unless_it_is_told_to(tmp_path: Path):
    """The addresses do not exist there."""
    settings = ServerSettings()
    places = ServerPlaces(log=tmp_path / "log", budgets=tmp_path / "budgets.db")
    keys = KeyStore(tmp_path / "keys.json")
    app, _ = build_app(
        settings, places, lambda current: None, Authenticator(keys), connections=make_connections(settings)
    )
    client = TestClient(app, headers={"Authorization": f"Bearer {keys.create('trainer', ['rollout'])}"})
    for method, path in (("PUT", f"{FILES}/{'0' * 64}"), ("POST", WEIGHTS), ("POST", TURNS)):
        assert error_of(client.request(method, path, content=b""))[:2] == (404, "unknown_url")


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    for byte in content:
        yield bytes([byte])


def test_files_that_do_not_fit_displace_the_ones_used_longest_ago():
    """Room for 8 bytes: of aaa, bbb and ccc the second goes, because the first is asked for again before the third."""
    files = WeightFiles(8)

    def missing(*contents: bytes) -> list[bytes]:
        names = {digest(content): content for content in contents}
        wanted = WeightsRequest(version="0" * 16, files={f"{k}.json": key for k, key in enumerate(names)})
        return sorted(names[key] for key in files.missing(wanted))

    async def send() -> None:
        for content in (b"aaa", b"bbb"):
            await files.receive(digest(content), 3, _chunks(content))
        assert missing(b"aaa") == []
        await files.receive(digest(b"ccc"), 3, _chunks(b"ccc"))
        for content in (b"ddd", b"d"):
            with pytest.raises(APIError, match="the file has not the 2 bytes that content-length states"):
                await files.receive(digest(content), 2, _chunks(content))
        with pytest.raises(APIError, match="the file has 9 bytes, and this server keeps 8"):
            await files.receive(digest(b""), 9, _chunks(b""))

    asyncio.run(send())
    assert missing(b"aaa", b"bbb", b"ccc", b"ddd") == [b"bbb", b"ddd"]
    files.close()


def test_a_sender_that_leaves_displaces_no_more_than_it_has_sent():
    """Room for 8 bytes. One states 8 and sends nothing, the next one sends 3: one of aaa and bbb goes for these."""
    files = WeightFiles(8)
    wanted = WeightsRequest(version="0" * 16, files={"a.json": digest(b"aaa"), "b.json": digest(b"bbb")})

    async def left(content: bytes) -> AsyncIterator[bytes]:
        for byte in content:
            yield bytes([byte])
        raise ClientDisconnect

    async def send() -> None:
        for content in (b"aaa", b"bbb"):
            await files.receive(digest(content), 3, _chunks(content))
        for content, missing in ((b"", 0), (b"ccc", 1)):
            with pytest.raises(ClientDisconnect):
                await files.receive(digest(b"cccccccc"), 8, left(content))
            assert len(files.missing(wanted)) == missing
        await files.receive(digest(b"dddd"), 4, _chunks(b"dddd"))
        assert len(files.missing(wanted)) == 1

    asyncio.run(send())
    files.close()


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("bomb", "reason"),
    [
        ("{% set x = 9**(9**10) %}", "TooLarge: an operation would make a value"),
        ("{% set x = 'x'*(2**31) %}", "TooLarge: an operation would make a value"),
        (LOOPS, "TimeoutError: not done after 5.01 s|trying the chat template takes more than 5 s"),
        (LOOPS.replace("99999", "4000"), "trying the chat template takes more than 5 s"),
    ],
    ids=["power", "long text", "loops", "slow in each rendering"],
)
def test_a_server_answers_while_it_refuses_a_chat_template(
    server: ChatServer, trainer: httpx.Client, bomb: str, reason: str
):
    """400 with the reason. Another client gets each of its answers within a second, and the server goes on."""
    files = FILES_OF_CLERK | {"chat_template.jinja": bomb.encode() + FILES_OF_CLERK["chat_template.jinja"]}
    for content in files.values():
        assert put(trainer, content).status_code == 201
    loading, waits = threading.Event(), [0.0]

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as other:
            while not loading.wait(0.02):
                start = time.monotonic()
                assert other.get("/live").status_code == 200
                waits.append(time.monotonic() - start)

    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(ask)
        try:
            status, _, message = error_of(trainer.post(WEIGHTS, json=request("2" * 16, files)))
        finally:
            loading.set()
        asking.result()
    assert status == 400
    assert re.search(reason, message), message
    assert max(waits) < 1
    assert len(waits) > 10
