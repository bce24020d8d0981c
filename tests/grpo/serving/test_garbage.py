"""Full collections beside turns in progress: few, and short."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from grpo.serving.garbage import frozen_survivors
from grpo.serving.requests.admission import Admission
from grpo.serving.requests.chat_handler import ChatHandler
from grpo.serving.routes.completions import CompletionHandler
from tests import waiting
from tests.grpo.serving.chat_servers import chat_server

_REQUESTS = (ChatHandler, CompletionHandler, Admission)
until = partial(waiting.until, patience_s=240)


@pytest.fixture
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.usefixtures("without_collections")
def test_a_request_is_freed_at_its_end(tmp_path: Path):
    """A cycle would hold it, with all of its tokens, until a full collection; each route and a client that leaves."""
    with chat_server(tmp_path / "server") as server:
        ask = {"model": "clerk", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 24}
        url = f"{server.url}/v1/chat/completions"
        headers = {"Authorization": f"Bearer {server.client().api_key}"}
        with httpx.Client(headers=headers, timeout=60) as client:
            for _ in range(3):
                assert client.post(url, json=ask).status_code == 200
                with client.stream("POST", url, json={**ask, "stream": True}) as whole:
                    assert list(whole.iter_lines())
                with client.stream("POST", url, json={**ask, "stream": True}) as left:
                    next(left.iter_lines())
                prompt = {"model": "clerk", "prompt": "Hello", "max_tokens": 8}
                assert client.post(f"{server.url}/v1/completions", json=prompt).status_code == 200
                with connect(f"ws{server.url[4:]}/v1/chat/stream", additional_headers=dict(headers)) as socket:
                    socket.send(json.dumps({**ask, "stream": True}))
                    while "[DONE]" not in str(socket.recv(timeout=240)):
                        pass
        until("the end of all", lambda: server.service.requests == 0)
        until("that all are freed", lambda: not [one for one in gc.get_objects() if isinstance(one, _REQUESTS)])


def test_a_server_collects_as_often_as_python_does():
    """Streams wait for two microseconds per new object: .14 s after 70,000, and 2 s after the million of a command."""
    before = gc.get_threshold()
    gc.set_threshold(10_000, 10, 10)
    try:
        with frozen_survivors():
            assert gc.get_threshold() == (700, 10, 10)
        assert gc.get_threshold() == (10_000, 10, 10)
    finally:
        gc.set_threshold(*before)


def test_what_a_full_collection_has_kept_is_left_out_of_the_next_ones():
    """And freed all the same when nothing refers to it."""

    class Conversation:
        pass

    kept = Conversation()
    with frozen_survivors():
        gc.collect()
        assert not any(known is kept for known in gc.get_objects())
        freed = weakref.ref(kept)
        del kept
        assert freed() is None
    later = Conversation()
    gc.collect()
    assert any(known is later for known in gc.get_objects())
