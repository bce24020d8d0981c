from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import psutil
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.transcript import TokenTranscript
from grpo.config.agent import AgentConfig
from grpo.config.serving import CallerLimits, EngineSettings, ServiceSettings
from grpo.errors import StorageError
from grpo.log.folder import ServedLog
from grpo.log.join import join
from grpo.messages import Message, ToolCall
from grpo.policy.policy import Sampling
from grpo.policy.transformers.model import TransformersPolicy
from grpo.renderers.chat_template import Renderer
from grpo.renderers.reply_format import HERMES
from grpo.serving.engine.engine import ProcessPolicy
from grpo.serving.engine.served_model import ServedModel
from grpo.serving.protocol.chat_response import Choice, Completion, event
from tests import waiting
from tests.grpo.serving.chat_servers import ChatServer, chat_server, clerk, load_clerk

until = partial(waiting.until, patience_s=240)
QUESTION = {"role": "user", "content": "Hello, where is my order 1234?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look an order up.",
        "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    with chat_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def chat(client: openai.OpenAI, *messages: dict[str, Any], **settings: Any) -> Any:
    return client.chat.completions.create(model="clerk", messages=list(messages) or [QUESTION], **settings)  # type: ignore[call-overload]


def visible(message: Any) -> tuple[str, list[tuple[str, str]]]:
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return message.content or "", calls


def joined_chunks(stream: Any) -> tuple[str, list[tuple[str, str]], str | None]:
    """Content, calls and finish reason of a stream; the last chunk of a choice is empty, each call has one name."""
    content, calls, finish = "", {}, None
    for chunk in stream:
        (choice,) = chunk.choices
        assert finish is None
        delta = choice.delta
        content += delta.content or ""
        for call in delta.tool_calls or ():
            name, arguments = calls.get(call.index, ("", ""))
            assert not (name and call.function.name)
            calls[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
        finish = choice.finish_reason
        if finish is not None:
            assert not delta.content
            assert not delta.tool_calls
    return content, [calls[index] for index in sorted(calls)], finish


def test_a_reply_is_what_the_policy_samples_with_the_seed(server: ChatServer):
    """The words of a transcript of the same model, prompt and seed, of which the log has the tokens."""
    reply = chat(server.client(), seed=7)
    policy = load_clerk()

    async def sample() -> TokenTranscript:
        renderer = Renderer(policy.tokenizer)
        sampling = Sampling(temperature=1.0, max_new_tokens=24, seed=7)
        async with policy.sampler(concurrency=1, renderer=renderer) as sampler:
            transcript = TokenTranscript(sampler.open(), renderer, sampling, max_context=policy.max_context)
            transcript.parses_calls = False  # no tool is offered
            await transcript.generate([Message(role="user", content=QUESTION["content"])])
            return transcript

    expected = asyncio.run(sample())
    logged = next(turn for turn in server.turns() if f"chatcmpl-{turn.id}" == reply.id)
    assert logged.token_ids.tolist() == expected.ids
    assert logged.loss_mask.tolist() == expected.mask
    assert logged.sampler_logprobs == pytest.approx(np.array(expected.logprobs), abs=1e-5)
    message = expected.turns[-1].message
    assert visible(reply.choices[0].message)[0] == message.content
    assert (logged.status, logged.model, logged.seed) == ("answered", "clerk/1", 7)
    assert reply.usage.completion_tokens == sum(expected.mask)
    assert reply.usage.prompt_tokens == len(expected.ids) - sum(expected.mask)


def test_a_stream_joins_to_the_whole_message(server: ChatServer):
    """Twenty seeds, with calls and without, with log-probabilities of each token once."""
    client, kinds = server.client(), set()
    for seed in range(20):
        whole = chat(client, seed=seed, tools=[TOOL]).choices[0]
        content, calls, finish = joined_chunks(chat(client, seed=seed, stream=True, tools=[TOOL]))
        assert (content, calls) == visible(whole.message)
        assert finish == whole.finish_reason
        kinds.add(finish)
    assert {"stop", "tool_calls"} <= kinds


def test_an_error_of_the_streaming_is_logged_and_the_reply_is_whole(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The text comes with the end. Without a line in the log nobody would know why replies stream no more."""
    whole = chat(server.client(), seed=7).choices[0]

    def fail(renderer: Renderer, text: str, progress: object) -> str:
        raise ValueError("not a text")

    monkeypatch.setattr(Renderer, "settled_content", fail)
    content, calls, _ = joined_chunks(chat(server.client(), seed=7, stream=True))
    assert (content, calls) == visible(whole.message)
    assert "a reply was not streamed while it was generated" in caplog.text


def test_a_path_with_a_last_slash_is_that_of_its_route(server: ChatServer):
    """Also for its key and scope, and without a redirect, which would go to the host that the request names."""
    plain = httpx.post(f"{server.url}/v1/chat/completions", headers=server.headers(), json={}, timeout=60)
    for path, scope in (("/v1/chat/completions/", "feedback"), ("/v1/feedback//", "chat")):
        url = f"{server.url}{path}"
        assert httpx.post(url, json={}, timeout=60).status_code == 401
        other = {"Authorization": f"Bearer {server.client(f'{scope}-only', (scope,)).api_key}"}
        assert httpx.post(url, headers=other, json={}, timeout=60).status_code == 403
        answer = httpx.post(url, headers={**server.headers(), "host": "evil.example"}, json={}, timeout=60)
        assert answer.status_code == plain.status_code == 400
        assert "location" not in answer.headers
    assert httpx.get(f"{server.url}/ready/", timeout=60).status_code == 200


def test_each_model_is_listed_once(tmp_path: Path):
    """A model folder that is not registered has one name, which is both its model and its version."""

    def next_version(current: str) -> ServedModel | None:
        return None if current else replace(clerk(), model="clerk", version="clerk")

    with chat_server(tmp_path, next_version) as server:
        for path in ("/v1/models", "/v1/models/"):
            listed = httpx.get(f"{server.url}{path}", headers=server.headers(), timeout=60).json()["data"]
            assert [model["id"] for model in listed] == ["clerk"]


@pytest.mark.parametrize("path", ["/", "/live", "/health", "/ready", "/v1/models", "/v1/models/clerk", "/metrics"])
def test_head_is_answered_like_get_without_a_body(server: ChatServer, path: str):
    """With the same check of the key. The length of `/metrics` changes from request to request."""
    for headers in (server.headers(), {}):
        get = httpx.get(f"{server.url}{path}", headers=headers, timeout=60)
        head = httpx.head(f"{server.url}{path}", headers=headers, timeout=60)
        assert (head.status_code, head.headers["content-type"]) == (get.status_code, get.headers["content-type"])
        assert path == "/metrics" or head.headers["content-length"] == get.headers["content-length"]
        assert head.content == b""
    assert httpx.head(f"{server.url}/v1/feedback", headers=server.headers(), timeout=60).status_code == 405


def test_tokens_that_come_soon_after_another_share_its_event(tmp_path: Path):
    """An hour between two events: the first has what there is, the second all that came until the end."""
    with chat_server(tmp_path, service=ServiceSettings(stream_interval_s=3600)) as server:
        client = server.client()
        for seed in range(20):
            whole = chat(client, seed=seed).choices[0].message.content or ""
            texts = [chunk.choices[0].delta.content for chunk in chat(client, seed=seed, stream=True)]
            texts = [text for text in texts if text]
            assert "".join(texts) == whole
            assert len(texts) <= 2


def test_log_probabilities_come_once_for_each_token(server: ChatServer):
    """Whole and streamed alike; the sampled token is among its alternatives or below them, and they are sorted.

    The token that ends a turn is counted, and is no part of the reply.
    """
    client = server.client()
    for seed in range(5):
        whole = chat(client, seed=seed, logprobs=True, top_logprobs=3)
        tokens = whole.choices[0].logprobs.content
        ended = whole.choices[0].finish_reason != "length"
        assert len(tokens) == whole.usage.completion_tokens - ended
        streamed = [
            token
            for chunk in chat(client, seed=seed, logprobs=True, top_logprobs=3, stream=True)
            if chunk.choices[0].logprobs is not None
            for token in chunk.choices[0].logprobs.content
        ]
        assert [(token.token, token.bytes) for token in streamed] == [(token.token, token.bytes) for token in tokens]
        for token in tokens:
            top = [other.logprob for other in token.top_logprobs]
            assert top == sorted(top, reverse=True)
            assert token.logprob <= top[0]
            assert len(top) == 3


def test_each_parameter_has_its_effect(server: ChatServer):
    client = server.client()
    greedy = {str(visible(chat(client, temperature=0, seed=seed).choices[0].message)) for seed in range(3)}
    assert len(greedy) == 1
    assert str(visible(chat(client, top_p=0.0001, seed=5).choices[0].message)) in greedy
    limited = chat(client, max_completion_tokens=3, seed=1)
    assert (limited.usage.completion_tokens, limited.choices[0].finish_reason) == (3, "length")
    assert chat(client, max_tokens=3, seed=1).choices[0].message.content == limited.choices[0].message.content
    several = chat(client, n=3, seed=1)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    texts = [str(visible(choice.message)) for choice in several.choices]
    assert texts[0] == str(visible(chat(client, seed=1).choices[0].message))
    assert len({*texts}) > 1
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}, seed=1))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == chat(client, seed=1).usage.total_tokens
    assert chat(client, seed=1, tools=[TOOL]).usage.prompt_tokens > chat(client, seed=1).usage.prompt_tokens


def test_a_request_without_tools_gets_no_calls(server: ChatServer):
    """A call that the model writes is content, because the client has offered nothing that it could run."""
    client, written = server.client("toolless"), 0
    for seed in range(50, 56):
        whole = chat(client, seed=seed).choices[0]
        assert (whole.finish_reason, whole.message.tool_calls) == ("stop", None)
        assert joined_chunks(chat(client, seed=seed, stream=True)) == (whole.message.content, [], "stop")
        written += whole.message.content.startswith("<tool_call>{")
    assert written


def test_tool_choice_none_makes_a_call_content(server: ChatServer):
    """The tokens are the same, the tools stay in the prompt, and the conversation goes on with its tools."""
    client, asked = server.client("none"), {"tools": [TOOL]}
    seed = next(seed for seed in range(50) if chat(client, seed=seed, **asked).choices[0].finish_reason == "tool_calls")
    called, reply = chat(client, seed=seed, **asked), chat(client, seed=seed, tool_choice="none", **asked)
    message = reply.choices[0].message
    assert reply.usage == called.usage
    assert (reply.choices[0].finish_reason, message.tool_calls) == ("stop", None)
    assert called.choices[0].message.tool_calls[0].function.name in message.content
    streamed = joined_chunks(chat(client, seed=seed, tool_choice="none", stream=True, **asked))
    assert streamed == (message.content, [], "stop")
    following, extra = {"role": "user", "content": "Go on."}, {"conversation_id": reply.conversation_id}
    second = chat(client, following, extra_body=extra, tool_choice="none", **asked)
    third = chat(client, following, extra_body=extra, **asked)
    turns = {f"chatcmpl-{turn.id}": turn for turn in server.turns()}
    assert turns[reply.id].turns[-1].message == Message(role="assistant", content=message.content)
    assert turns[second.id].parent == turns[reply.id].id
    assert turns[third.id].parent == turns[second.id].id
    assert turns[reply.id].token_ids.tolist() == turns[called.id].token_ids.tolist()


def test_a_caller_whose_limits_are_used_up_is_refused_before_its_prompt_is_read(server: ChatServer):
    """A prompt that is too long is refused by its length, which counts as a request, and then by the limit."""
    secret = server.keys.create("once", ("chat",), CallerLimits(requests_per_minute=2))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=secret, max_retries=0) as client:
        long = "x " * 9000
        with pytest.raises(openai.BadRequestError, match="the context has"):
            client.completions.create(model="clerk", prompt=long)
        chat(client, max_tokens=2)
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model="clerk", prompt=long)


def test_a_text_of_stop_ends_the_reply_before_it(server: ChatServer):
    """Whole and streamed: nothing of the text, although it arrives in several tokens."""
    client = server.client()
    full = next(
        reply.choices[0].message.content
        for seed in range(50)
        if (reply := chat(client, seed=seed)).choices[0].finish_reason == "stop"
        and len(reply.choices[0].message.content.split()) > 3
    )
    seed = next(seed for seed in range(50) if chat(client, seed=seed).choices[0].message.content == full)
    stop = full.split()[2]
    stopped = chat(client, seed=seed, stop=[stop, "never"])
    assert stopped.choices[0].message.content == full[: full.index(stop)].strip()
    assert stopped.choices[0].finish_reason == "stop"
    assert joined_chunks(chat(client, seed=seed, stop=stop, stream=True))[0] == stopped.choices[0].message.content


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"metadata": {"category": "x" * 100_000}}, "metadata.category"),
        ({"metadata": {"x" * 100_000: "x"}}, f"metadata.{'x' * 64}.[key]"),
        ({"user": "x" * 513}, "user"),
        ({"stop": ["x", "x" * 1025]}, "stop"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"n": 0}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ["a", "b", "c", "d", "e"]}, None),
        ({"top_logprobs": 2}, None),
        ({"extra_body": {"min_p": 0.1}}, "min_p"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
        ({"messages": [QUESTION, {"role": "assistant", "content": "ok"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "1", "tool_call_id": "x"}]}, "messages[0].tool_call_id"),
        ({"model": "another"}, "model"),
        ({"extra_body": {"conversation_id": "unknown"}}, "conversation_id"),
        ({"messages": [{"role": "user", "content": "x " * 9000}]}, "messages"),
    ],
)
def test_a_parameter_without_effect_is_refused_by_its_name(
    server: ChatServer, parameters: dict[str, Any], param: str | None
):
    given = {"model": "clerk", "messages": [QUESTION], **parameters}
    with pytest.raises(openai.APIStatusError) as refused:
        server.client().chat.completions.create(**given)
    assert refused.value.status_code in (400, 404)
    assert param is None or refused.value.param == param


def test_a_conversation_goes_on_by_its_id_and_two_never_mix(server: ChatServer):
    """The second message sees the first; an id of another key is not known."""
    client = server.client()
    first, other = chat(client, seed=1), chat(client, {"role": "user", "content": "I want a refund."}, seed=2)
    following = {"role": "user", "content": "And now?"}
    second = chat(client, following, seed=3, extra_body={"conversation_id": first.conversation_id})
    assert second.conversation_id == first.conversation_id != other.conversation_id
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1
    with pytest.raises(openai.NotFoundError, match="no conversation"):
        chat(server.client("another"), following, extra_body={"conversation_id": first.conversation_id})
    with pytest.raises(openai.BadRequestError, match="began with other tools"):
        chat(client, following, tools=[TOOL], extra_body={"conversation_id": first.conversation_id})


def test_labels_of_a_conversation_are_those_of_its_scenario(server: ChatServer):
    """Category and domain come from `metadata`; another key has no effect, and is not logged."""
    client = server.client("labelled")
    labels = {"category": "return", "domain": "customer_service", "team": "blue-4711"}
    reply = chat(client, seed=4, metadata=labels)
    joined = join(ServedLog(server.folder / "log").read())
    conversation = next(item for item in joined.conversations if item.id == reply.conversation_id)
    assert (conversation.category, conversation.domain) == ("return", "customer_service")
    assert "blue-4711" not in str(list(ServedLog(server.folder / "log").read()))


def next_messages(reply: Any) -> list[dict[str, Any]]:
    """Results of the calls of a reply, or a message of the user."""
    calls = reply.choices[0].message.tool_calls or ()
    results = [{"role": "tool", "tool_call_id": call.id, "content": "{}"} for call in calls]
    return results or [{"role": "user", "content": "Go on."}]


def echo(reply: Any) -> dict[str, Any]:
    """The reply as a message of the next request."""
    message: dict[str, Any] = reply.choices[0].message.model_dump(exclude_none=True)
    return message


def test_a_conversation_goes_on_by_its_messages(server: ChatServer):
    """Its turns are a chain in the log; another continuation of the same turn is a fork with an id of its own."""
    client = server.client("by-messages")
    messages: list[dict[str, Any]] = [QUESTION]
    ids, replies = [], []
    for seed in range(3):
        reply = chat(client, *messages, seed=seed + 20)
        replies.append(reply)
        ids.append(reply.conversation_id)
        messages += [echo(reply), *next_messages(reply)]
    assert len(set(ids)) == 1
    turns = {f"chatcmpl-{turn.id}": turn for turn in server.turns()}
    chain = [turns[reply.id] for reply in replies]
    assert [turn.parent for turn in chain] == [None, chain[0].id, chain[1].id]
    fork = chat(client, *messages[:3], seed=99)
    assert fork.conversation_id == ids[0]
    forked = next(turn for turn in server.turns() if f"chatcmpl-{turn.id}" == fork.id)
    assert forked.parent == chain[0].id
    assert server.service.counts.joined["fork"] == 1


def test_a_log_has_the_tokens_and_log_probabilities_that_the_weights_give(server: ChatServer):
    """Conversations of three turns: the sampled tokens' log-probabilities, computed anew, are those of the log."""
    client = server.client("recomputed")
    first = chat(client, seed=41)
    last = first
    for seed in (42, 43):
        last = chat(client, *next_messages(last), seed=seed, extra_body={"conversation_id": first.conversation_id})
    joined = join(ServedLog(server.folder / "log").read())
    conversation = next(c for c in joined.conversations if c.id.startswith(first.conversation_id))
    token_ids, loss_mask, sampler_logprobs = (
        np.concatenate([getattr(turn, name) for turn in conversation.turns])
        for name in ("token_ids", "loss_mask", "sampler_logprobs")
    )
    assert conversation.turns[0].loss_mask.sum() == first.usage.completion_tokens
    ids = torch.from_numpy(token_ids.astype(np.int64))
    with torch.inference_mode():
        logits = load_clerk().model(input_ids=ids[None]).logits[0]
    computed = logits.log_softmax(dim=-1)[:-1].gather(1, ids[1:, None])[:, 0].numpy()
    mask = loss_mask[1:]
    assert np.abs(computed[mask] - sampler_logprobs[1:][mask]).max() < 1e-4


def test_choices_are_turns_of_one_request_and_the_first_goes_on(server: ChatServer):
    client = server.client("choices")
    reply = chat(client, n=2, seed=5)
    turns = [turn for turn in server.turns() if f"chatcmpl-{turn.request_id}" == reply.id]
    assert [(turn.choice, turn.conversation_id) for turn in turns] == [
        (0, reply.conversation_id),
        (1, reply.conversation_id),
    ]
    chat(client, *next_messages(reply), extra_body={"conversation_id": reply.conversation_id})
    assert server.turns()[-1].parent == turns[0].id


def test_equal_conversations_of_one_client_are_not_confused(server: ChatServer):
    """Two with the same messages, seed and so reply: which of them goes on is unknown, so neither does."""
    client = server.client("twins")
    first, second = chat(client, seed=8), chat(client, seed=8)
    assert visible(first.choices[0].message) == visible(second.choices[0].message)
    third = chat(client, QUESTION, echo(first), *next_messages(first))
    assert third.conversation_id not in (first.conversation_id, second.conversation_id)
    assert server.service.counts.joined["ambiguous"] == 1
    assert server.turns()[-1].parent is None


def engine_pid(server: ChatServer) -> int:
    version = server.service.versions.current
    assert version is not None
    assert isinstance(version.served.policy, ProcessPolicy)
    return version.served.policy.pid


@contextmanager
def slow_passes(server: ChatServer) -> Iterator[None]:
    """An engine process that is stopped most of the time, so that a few tokens take seconds."""
    pid, over = engine_pid(server), threading.Event()

    def hold_up() -> None:
        while not over.wait(0.005):
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.2)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=hold_up)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_client_that_goes_away_leaves_the_batch_and_an_aborted_turn(server: ChatServer):
    """Streamed, and whole with four choices; afterwards nothing runs."""
    replies = {seed: chat(server.client("hasty"), seed=seed) for seed in range(10)}
    seed = max(replies, key=lambda seed: len((replies[seed].choices[0].message.content or "").split()))
    body = {"model": "clerk", "messages": [QUESTION], "seed": seed}
    url, headers = f"{server.url}/v1/chat/completions", server.headers("hasty")
    before = server.service.counts.turns["aborted"]
    with slow_passes(server):
        with httpx.stream("POST", url, json={**body, "stream": True}, headers=headers, timeout=60) as stream:
            next(stream.iter_lines())
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)) as connection:
            whole = json.dumps({**body, "n": 4})
            connection.request("POST", "/v1/chat/completions", whole, {**headers, "Content-Type": "application/json"})
            until("the four turns", lambda: server.service.requests >= 4)
        until("the end of all requests", lambda: server.service.requests == 0)
    assert server.service.counts.turns["aborted"] - before == 5
    assert all(turn.reason == "the client went away" for turn in server.turns() if turn.status == "aborted")
    version = server.service.versions.current
    assert version is not None
    until("an empty batch", lambda: (stats := version.stats()) is not None and stats.running == 0)


def test_all_turns_are_in_the_log(server: ChatServer):
    """Served = logged + failed: the counts of the server are those of the log."""
    statuses = [turn.status for turn in server.turns()]
    for status in ("answered", "aborted", "failed"):
        assert statuses.count(status) == server.service.counts.turns[status]


def test_a_full_server_refuses_before_it_reads(tmp_path: Path):
    """503 even for a body that is not JSON, which gets 400 where there is room; 401 comes before it."""
    with chat_server(tmp_path, service=ServiceSettings(max_requests=1)) as server:
        headers = server.headers("hasty")

        def statuses(**headers: str) -> list[int]:
            paths = ("chat/completions", "completions", "feedback")
            return [
                httpx.post(f"{server.url}/v1/{path}", content="{", headers=headers, timeout=60).status_code
                for path in paths
            ]

        assert statuses(**headers) == [400, 400, 400]
        server.service.requests = 1
        assert statuses(**headers) == [503, 503, 400]
        assert statuses() == [401, 401, 401]
        server.service.requests = 0
        assert server.service.counts.refused["requests"] == 2


def test_a_full_server_refuses_with_the_time_to_wait(tmp_path: Path):
    """One turn at once: of sixteen that come together some get 503 and Retry-After, all others an answer."""
    with chat_server(tmp_path, service=ServiceSettings(max_requests=1)) as server:
        client = server.client()

        def ask(seed: int) -> tuple[int, float]:
            try:
                chat(client, seed=seed)
            except openai.InternalServerError as refused:
                return refused.status_code, float(refused.response.headers["retry-after-ms"])
            return 200, 0.0

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, range(32)))
        refused = [wait for status, wait in answers if status == 503]
        assert refused
        assert all(0 < wait <= 120_000 for wait in refused)
        assert len(refused) == server.service.counts.refused["requests"]
        assert len(server.turns()) == 32 - len(refused)
        patient = client.with_options(max_retries=50)
        with ThreadPoolExecutor(4) as pool:
            assert all(reply.choices for reply in pool.map(lambda seed: chat(patient, seed=seed), range(8)))


def test_a_turn_that_cannot_be_logged_is_not_answered(tmp_path: Path):
    """A full disk: whole and streamed requests end with 503, and the turn is not a part of any conversation."""
    with chat_server(tmp_path) as server:
        client, working = server.client(), server.service.log.append

        async def full(record: object) -> None:
            raise StorageError("no space left on device")

        server.service.log.append = full  # type: ignore[method-assign]
        with pytest.raises(openai.InternalServerError, match="cannot be logged now"):
            chat(client)
        with pytest.raises(openai.APIError, match="cannot be logged now"):
            list(chat(client, stream=True))
        assert len(server.service.conversations) == 0
        server.service.log.append = working  # type: ignore[method-assign]
        assert chat(client).choices
        assert server.service.counts.unlogged >= 2


def test_a_new_version_answers_new_conversations_and_the_old_one_its_own(tmp_path: Path):
    """The version changes below a conversation: its next turn is still of version 1, another conversation of 2."""
    newest = [1]

    def next_version(current: str) -> Any:
        return None if current == f"clerk/{newest[0]}" else clerk(newest[0])

    with chat_server(tmp_path, next_version) as server:
        client = server.client()
        first = chat(client, seed=1)
        newest[0] = 2
        until("the swap", lambda: server.service.versions.swaps == 1)
        other = chat(client, seed=2)
        second = chat(client, *next_messages(first), extra_body={"conversation_id": first.conversation_id})
        models = {turn.id: turn.model for turn in server.turns()}
        assert [models[reply.id.removeprefix("chatcmpl-")] for reply in (first, other, second)] == [
            "clerk/1", "clerk/2", "clerk/1",
        ]  # fmt: skip
        assert [model.id for model in client.models.list()] == ["clerk", "clerk/1", "clerk/2"]
        assert client.models.retrieve("clerk/1").id == "clerk/1"
        with pytest.raises(openai.NotFoundError, match="no model 'clerk/3'"):
            client.models.retrieve("clerk/3")
        newest[0] = 3
        until(
            "the new version",
            lambda: [version.served.version for version in server.service.versions.loaded] == ["clerk/2", "clerk/3"],
        )
        moved = chat(client, *next_messages(second), extra_body={"conversation_id": first.conversation_id})
        assert moved.conversation_id == first.conversation_id
        assert (server.turns()[-1].model, server.turns()[-1].parent) == ("clerk/3", None)
        again = chat(client, *next_messages(moved), extra_body={"conversation_id": first.conversation_id})
        assert server.turns()[-1].parent == moved.id.removeprefix("chatcmpl-")
        assert again.conversation_id == first.conversation_id


def test_a_version_that_cannot_be_loaded_leaves_the_one_that_answers(tmp_path: Path):
    def next_version(current: str) -> Any:
        if current:
            raise StorageError("the registry is away")
        return clerk()

    with chat_server(tmp_path, next_version) as server:
        assert chat(server.client()).choices
        until("a failed load", lambda: server.service.versions.failed_loads > 0)


def test_probes_need_no_key_and_tell_the_states_apart(server: ChatServer):
    assert (
        httpx.get(f"{server.url}/live", timeout=60).json()
        == httpx.get(f"{server.url}/health", timeout=60).json()
        == {"status": "healthy"}
    )
    assert httpx.get(f"{server.url}/ready", timeout=60).json() == {"status": "ready", "model": "clerk/1", "servers": 1}
    server.service.draining = True
    try:
        answer = httpx.get(f"{server.url}/ready", timeout=60)
        assert (answer.status_code, answer.json()["status"]) == (503, "draining")
        with pytest.raises(openai.InternalServerError, match="starting or stopping"):
            chat(server.client())
    finally:
        server.service.draining = False


def test_every_route_needs_a_key_but_the_page_and_the_probes(server: ChatServer):
    """All routes of the application, asked without a key and with one of the wrong scope."""
    paths = httpx.get(
        f"{server.url}/openapi.json", headers={"Authorization": f"Bearer {server.client().api_key}"}, timeout=60
    ).json()["paths"]
    assert {
        "/v1/chat/completions",
        "/v1/feedback",
        "/v1/log",
        "/metrics",
        "/v1/metrics",
        "/v1/models",
        "/live",
        "/ready",
    } <= paths.keys()
    other = server.client("feedback-alone", ("feedback",)).api_key
    for path, methods in paths.items():
        for method in methods:
            public = path in ("/", "/live", "/health", "/ready")
            assert (httpx.request(method, f"{server.url}{path}", timeout=60).status_code == 401) != public
            headers = {"Authorization": f"Bearer {other}"}
            status = httpx.request(method, f"{server.url}{path}", headers=headers, timeout=60).status_code
            assert (status == 403) == (not public and path != "/v1/feedback")


def test_the_openapi_document_has_the_body_of_each_request(server: ChatServer):
    """With every schema that it refers to: tools such as schemathesis make their requests from it."""
    headers = {"Authorization": f"Bearer {server.client().api_key}"}
    document = httpx.get(f"{server.url}/openapi.json", headers=headers, timeout=60).json()
    schemas = document["components"]["schemas"]
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    named = {"ChatRequest", "CompletionRequest", "FeedbackRequest", "LogRequest", "TrainRequest", "ScaleRequest"}
    assert named <= referred
    assert referred <= schemas.keys()
    assert {"conversation_id", "rating", "success"} <= schemas["FeedbackRequest"]["properties"].keys()
    posts = {path for path, methods in document["paths"].items() if "post" in methods}
    assert {path for path in posts if "requestBody" in document["paths"][path]["post"]} == posts - {
        "/v1/train/{id}/cancel"
    }


def test_feedback_is_joined_to_its_conversation(server: ChatServer):
    """A rating twice counts once; a correction is of its turn."""
    client = server.client("critic")
    reply = chat(client, seed=3)

    def send(**body: Any) -> httpx.Response:
        return httpx.post(
            f"{server.url}/v1/feedback", json=body, headers={"Authorization": f"Bearer {client.api_key}"}, timeout=60
        )

    given = {"conversation_id": reply.conversation_id, "rating": 0.25}
    assert send(**given).json()["id"] == send(**given).json()["id"]
    call = {"tool_calls": [{"name": "look_up", "arguments": {"order": "7"}}]}
    for correction in ("It is on its way.", call):
        sent = send(conversation_id=reply.conversation_id, turn_id=reply.id, correction=correction)
        assert sent.status_code == 200
    assert send(conversation_id=reply.conversation_id, success=False).status_code == 200
    for refused in (
        {"rating": 2},
        {},
        {"correction": "x"},
        {"correction": {"tool_calls": []}, "turn_id": "x"},
        {"stars": 5},
    ):
        assert send(conversation_id=reply.conversation_id, **refused).status_code == 400
    joined = join(ServedLog(server.folder / "log").read())
    conversation = next(entry for entry in joined.conversations if entry.id == reply.conversation_id)
    assert (conversation.judgement.rating, conversation.reward) == (0.25, 0.0)
    assert conversation.turn_judgements[reply.id.removeprefix("chatcmpl-")].correction == Message(
        role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": "7"}),)
    )
    assert joined.quarantined == ()


def test_metrics_count_what_was_served(server: ChatServer):
    """The same numbers as JSON and as text; their series do not grow with users."""
    client = server.client("scraper")
    headers = {"Authorization": f"Bearer {client.api_key}"}

    def scrape() -> dict[str, float]:
        values: dict[str, float] = httpx.get(f"{server.url}/v1/metrics", headers=headers, timeout=60).json()
        return values

    chat(client, user="first")
    scrape()  # which counts as a request from the next one on
    before = scrape()
    for number in range(20):
        chat(client, user=f"user {number}", max_tokens=2)
    after = scrape()
    assert after.keys() == before.keys()
    answered = 'grpo_turns_total{status="answered"}'
    assert after[answered] - before[answered] == 20
    name = 'gen_ai_server_request_duration_seconds_count{model_name="clerk/1",arm="champion"}'
    assert after[name] - before[name] == 20
    generated = 'vllm:generation_tokens_total{model_name="clerk/1",arm="champion"}'
    assert 20 <= after[generated] - before[generated] <= 40
    text = httpx.get(f"{server.url}/metrics", headers=headers, timeout=60).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["grpo_ready"].samples[0].value == 1


def test_one_of_many_requests_with_one_id_goes_on(server: ChatServer):
    """Eight at once: those that come while one is answered get 409, and each answered turn follows another."""
    client = server.client("eager")
    first = chat(client, seed=1)
    known = {"conversation_id": first.conversation_id}
    message = next_messages(first)

    def ask(_: int) -> int:
        try:
            chat(client, *message, extra_body=known)
        except openai.APIStatusError as refused:
            return refused.status_code
        return 200

    with slow_passes(server), ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(ask, range(8)))
    assert 409 in statuses
    turns = [turn for turn in server.turns() if turn.conversation_id == first.conversation_id]
    parents = [turn.parent for turn in turns if turn.status == "answered"]
    assert len(parents) == len({*parents}) == 1 + statuses.count(200)


class _NoMemory:
    """Hook by which the model's forward passes fail while a file is there."""

    def __init__(self, switch: Path) -> None:
        self.switch = switch

    def __call__(self, *args: object) -> None:
        if self.switch.exists():
            raise MemoryError("no memory is left")


def _load_fragile(switch: Path) -> TransformersPolicy:
    policy = load_clerk()
    policy.model.register_forward_pre_hook(_NoMemory(switch))
    return policy


def test_an_error_of_a_pass_ends_its_turns_and_no_other(tmp_path: Path):
    """Out of memory in a pass: 500 for what runs, whole and streamed; then the server answers again."""
    switch = tmp_path / "fail"
    fragile = partial(clerk, load=partial(_load_fragile, switch))
    with chat_server(tmp_path, lambda current: None if current else fragile()) as server:
        switch.touch()
        with pytest.raises(openai.InternalServerError) as failed:
            chat(server.client())
        assert "no memory" not in failed.value.message
        with pytest.raises(openai.APIError, match="Its log has the cause"):
            list(chat(server.client(), stream=True))
        switch.unlink()
        assert chat(server.client()).choices
        until("the end of all requests", lambda: server.service.requests == 0)


def test_a_version_whose_engine_is_killed_is_loaded_again(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The turn in progress fails and is in the log; the server is not ready until it has the version anew."""
    with chat_server(tmp_path) as server:
        client = server.client()
        first = chat(client, seed=1)
        pid = engine_pid(server)
        os.kill(pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(chat, client, seed=2)
            until("the turn to run", lambda: server.service.requests == 1)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(openai.InternalServerError):
                asked.result()
        until("the version to be loaded again", lambda: server.service.ready and engine_pid(server) != pid)
        following = chat(client, *next_messages(first), extra_body={"conversation_id": first.conversation_id})
        assert following.conversation_id == first.conversation_id
        assert [turn.status for turn in server.turns()] == ["answered", "failed", "answered"]
    assert "exit code -9" in caplog.text


def test_a_version_whose_engine_hangs_is_loaded_again(tmp_path: Path):
    """The process lives and sends nothing: its turn gets 500, and another process answers the next."""
    engine = EngineSettings(concurrency=2, longest_pass_s=6)
    with chat_server(tmp_path, lambda current: None if current else clerk(), engine=engine) as server:
        client, pid = server.client(), engine_pid(server)
        chat(client, seed=1)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(openai.InternalServerError):
            chat(client, seed=2)
        until("the version to be loaded again", lambda: server.service.ready and engine_pid(server) != pid)
        until("the end of the process that hung", lambda: not psutil.pid_exists(pid))
        chat(client, seed=2)
        assert [turn.status for turn in server.turns()] == ["answered", "failed", "answered"]
        assert "no forward pass of the engine process ended in 6 s" in str(server.turns()[1].reason)


def test_a_client_that_hangs_up_pays_for_the_tokens(server: ChatServer):
    """The reservation is settled with the prompt and what was sampled, not with nothing."""
    key = server.keys.create("payer", ("chat",), CallerLimits(tokens_per_minute=100_000))
    replies = {seed: chat(server.client("hasty"), seed=seed) for seed in range(10)}
    seed = max(replies, key=lambda seed: len((replies[seed].choices[0].message.content or "").split()))
    body = {"model": "clerk", "messages": [QUESTION], "seed": seed, "stream": True}
    headers = {"Authorization": f"Bearer {key}"}
    with slow_passes(server):
        with httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60
        ) as stream:
            next(stream.iter_lines())
        until("the end of all requests", lambda: server.service.requests == 0)
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json={**body, "stream": False}, headers=headers, timeout=60
    )
    limit, left = (int(answer.headers[f"x-ratelimit-{name}-tokens"]) for name in ("limit", "remaining"))
    usage = replies[seed].usage
    assert limit - left > usage.total_tokens + usage.prompt_tokens


class Thoughtful(MultiTurnAgent):
    """Agent that does something for a second after each reply."""

    thinks = threading.Event()

    async def generate_reply(self, *arguments: Any, **more: Any) -> str:
        text = await super().generate_reply(*arguments, **more)
        self.thinks.set()
        await asyncio.sleep(1)
        return text


def test_a_turn_whose_engine_dies_after_its_reply_is_answered(tmp_path: Path):
    """The agent still works on it: the conversation goes on with the version that is loaded again."""
    agent = Thoughtful(AgentConfig(model_name="clerk"))
    with chat_server(tmp_path, lambda current: None if current else clerk(agent=agent)) as server:
        client = server.client()
        first = chat(client, seed=1)
        known = {"conversation_id": first.conversation_id}
        Thoughtful.thinks.clear()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(chat, client, *next_messages(first), seed=2, extra_body=known)
            assert Thoughtful.thinks.wait(240)
            pid = engine_pid(server)
            os.kill(pid, signal.SIGKILL)
            second = asked.result()
        until("the version to be loaded again", lambda: server.service.ready and engine_pid(server) != pid)
        assert chat(client, *next_messages(second), seed=3, extra_body=known).conversation_id == first.conversation_id
        assert [turn.status for turn in server.turns()] == ["answered"] * 3


def test_a_retired_version_is_let_go(tmp_path: Path):
    """Its process ends, with its memory, although conversations were its own."""
    newest, pids = [1], []

    def next_version(current: str) -> Any:
        if current == f"clerk/{newest[0]}":
            return None
        served = clerk(newest[0])
        pids.append(served.policy.pid)  # type: ignore[attr-defined]
        return served

    with chat_server(tmp_path, next_version) as server:
        client = server.client()
        chat(client, seed=1)
        chat(client, seed=2, stream=False)
        for number in (2, 3):
            newest[0] = number
            until("the swap", lambda number=number: server.service.versions.swaps == number - 1)
        until("the oldest version to be retired", lambda: len(server.service.versions.loaded) == 2)
        until("the first process to end", lambda: not psutil.pid_exists(pids[0]))
        assert psutil.pid_exists(pids[2])


def test_a_load_that_fails_is_tried_again(tmp_path: Path):
    """Any exception: it is logged, the champion goes on, and the next try succeeds."""
    attempts = []

    def next_version(current: str) -> Any:
        if not current:
            return clerk(1)
        attempts.append(current)
        if len(attempts) == 1:
            raise RuntimeError("out of memory")
        return None if current == "clerk/2" else clerk(2)

    with chat_server(tmp_path, next_version) as server:
        until("the swap", lambda: server.service.versions.swaps == 1)
        assert chat(server.client()).choices


def test_a_call_with_half_a_character_is_content_and_that_of_a_client_is_refused(server: ChatServer):
    """A model may write any escape, and no client gets arguments that it cannot send back."""
    function = {"name": "f", "arguments": '{"x": "\\ud800"}'}
    message = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}
    with pytest.raises(openai.BadRequestError, match="cannot be read as JSON"):
        chat(server.client(), QUESTION, message, {"role": "tool", "tool_call_id": "a", "content": "1"})
    text = f"<tool_call>{json.dumps({'name': 'f', 'arguments': {'x': chr(0xD800)}})}</tool_call>"
    reply = HERMES.parse(text)
    assert (reply.content, reply.tool_calls) == (text, ())
    choice = Choice(index=0, message=reply, finish_reason="stop", turn_id="t")
    completion = Completion(id="1", created=1, model="m", conversation_id="c", fingerprint="f")
    assert all(event(chunk) for chunk in completion.last_chunks(choice, "", None))


def test_stop_is_refused_where_it_would_cut_another_text(tmp_path: Path):
    """An agent that reasons."""
    agent = MultiTurnAgent(AgentConfig(model_name="clerk", enable_reasoning=True))
    with chat_server(tmp_path, lambda current: None if current else clerk(agent=agent)) as server:
        with pytest.raises(openai.BadRequestError) as refused:
            chat(server.client(), stop="x")
        assert refused.value.param == "stop"
        until("the end of all requests", lambda: server.service.requests == 0)
        assert chat(server.client()).choices


def test_a_reply_fits_the_rest_of_the_context(server: ChatServer):
    """Without max_tokens the limit of a reply is the room that is left; with it, too long a conversation is refused."""
    client, limit = server.client(), load_clerk().max_context
    for count in range(limit - 40, limit - 20):
        try:
            reply = chat(client, {"role": "user", "content": "a " * count})
        except openai.BadRequestError:
            continue
        assert reply.usage.total_tokens <= limit
        if reply.usage.prompt_tokens > limit - 24:
            break
    else:
        raise AssertionError("no reply was shorter than its usual limit")


def test_an_error_of_the_agent_is_counted_and_one_of_the_client_is_not(tmp_path: Path):
    """Requests count by route and code, those without a key under no route."""

    class Failing(MultiTurnAgent):
        async def respond(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("the agent is broken")

    broken = clerk(agent=Failing(AgentConfig(model_name="clerk")))
    with chat_server(tmp_path, lambda current: None if current else broken) as server:
        with pytest.raises(openai.InternalServerError):
            chat(server.client())
        with pytest.raises(openai.NotFoundError):
            server.client().chat.completions.create(model="other", messages=[QUESTION])  # type: ignore[list-item]
        httpx.get(f"{server.url}/v1/models", timeout=60)
        values = httpx.get(f"{server.url}/v1/metrics", headers=server.headers(), timeout=60).json()
    assert values["grpo_turn_errors_total"] == 1
    assert values['vllm:request_success_total{model_name="clerk/1",arm="champion",finished_reason="error"}'] == 1
    requests = {name: value for name, value in values.items() if name.startswith("http_requests_total")}
    assert requests == {
        'http_requests_total{route="/v1/chat/completions",method="POST",code="500"}': 1,
        'http_requests_total{route="/v1/chat/completions",method="POST",code="404"}': 1,
        'http_requests_total{route="none",method="GET",code="401"}': 1,
    }


def test_a_conversation_keeps_its_strategy(server: ChatServer):
    """The strategy is in the system prompt of the first turn: the same one is taken later, another one refused."""
    client = server.client("strategist")
    first = chat(client, extra_body={"strategy": "sales"})
    assert first.usage.prompt_tokens > chat(client).usage.prompt_tokens
    known = {"conversation_id": first.conversation_id}
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, *next_messages(first), extra_body={**known, "strategy": "educational"})
    assert refused.value.param == "strategy"
    assert chat(client, *next_messages(first), extra_body={**known, "strategy": "sales"}).choices


def test_repaired_and_malformed_calls_of_replies_are_counted(tmp_path: Path):
    """By the parser that training and evaluation use: one call without arguments beside a broken one."""

    class Calling(MultiTurnAgent):
        async def generate_response(self, *_: Any, **__: Any) -> str:
            return '<tool_call>{"name": "look_up"}</tool_call><tool_call>{"name"</tool_call>'

    caller = clerk(agent=Calling(AgentConfig(model_name="clerk")))
    with chat_server(tmp_path, lambda current: None if current else caller) as server:
        [choice] = chat(server.client(), tools=[TOOL]).choices
        values = httpx.get(f"{server.url}/v1/metrics", headers=server.headers(), timeout=60).json()
    assert [call.function.arguments for call in choice.message.tool_calls or ()] == ["{}"]
    counted = {form: values[f'grpo_tool_calls_total{{form="{form}"}}'] for form in ("parsed", "repaired", "malformed")}
    assert counted == {"parsed": 1, "repaired": 1, "malformed": 1}
