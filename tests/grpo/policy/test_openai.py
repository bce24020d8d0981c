from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo.config.rollout import RolloutSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.errors import ConfigError, PolicyError
from grpo.messages import Message, Tool, ToolCall
from grpo.policy.openai import ChatPolicy, CompletionsPolicy, to_openai_messages
from grpo.policy.openai_endpoint import OpenAIEndpoint, RequestFailed
from grpo.policy.policy import Generation, Policy, Prompt, Sampling
from grpo.policy.tokenizer import load_tokenizer
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from tests.model_server import DRIPPING, Answer, Model, says

SECRET = "sk-very-secret-42"
LOOK_UP = Tool(name="look_up", parameters={"type": "object", "properties": {"order": {"type": "string"}}})


def _chat(content: str | None, *calls: tuple[str, str], finish: str = "stop") -> Answer:
    tools = [
        {"id": f"c{k}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for k, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": tools or None}
    choice = {"index": 0, "finish_reason": finish, "message": message}
    return lambda body: (
        200,
        {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]},
    )


def _completion(finish: str = "stop", logprobs: dict[str, Any] | None = None, **more: Any) -> Answer:
    choice = {"index": 0, "text": "", "finish_reason": finish, "logprobs": logprobs, **more}
    return lambda body: (
        200,
        {"id": "1", "object": "text_completion", "created": 0, "model": "m", "choices": [choice]},
    )


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    model = Model()
    yield model
    model.close()


@pytest.fixture(scope="module")
def renderer(tiny_folder: Path) -> Renderer:
    return Renderer(load_tokenizer(tiny_folder), tools=(LOOK_UP,))


def _generate(
    policy: Policy,
    renderer: Renderer,
    *prompts: Prompt,
    seed: int = 1,
    temperature: float = 0.7,
    top_logprobs: int = 0,
) -> Generation:
    """Generation for the last prompt of one conversation."""

    async def run() -> Generation:
        async with policy.sampler(concurrency=1, renderer=renderer) as sampler:
            session = sampler.open()
            sampling = Sampling(temperature=temperature, max_new_tokens=5, seed=seed, top_logprobs=top_logprobs)
            return [await session.generate(prompt, sampling) for prompt in prompts][-1]

    return asyncio.run(run())


HELLO = Prompt(new_ids=[5, 20, 31], messages=(Message(role="user", content="hello"),))


# ---- chat ------------------------------------------------------------------------------------------------------------


def test_a_chat_request_has_messages_tools_and_sampling_settings(model: Model, renderer: Renderer):
    """The renderer encodes the returned message; log-probabilities are unknown."""
    model.answers = [_chat("Hi there.")]
    generation = _generate(ChatPolicy(model.server()), renderer, HELLO)
    assert generation.message == Message(role="assistant", content="Hi there.")
    assert generation.token_ids == renderer.encode_reply(generation.message)
    assert (generation.logprobs, generation.stop) == (None, "stop")
    (asked,) = model.asked
    assert (asked["path"], asked["model"]) == ("/v1/chat/completions", "clerk")
    assert asked["messages"] == [{"role": "user", "content": "hello"}]
    assert asked["tools"] == [LOOK_UP.to_template()]
    assert (asked["temperature"], asked["max_tokens"]) == (0.7, 5)
    assert model.keys == [f"Bearer {SECRET}"]


def test_a_server_that_refuses_max_tokens_gets_the_other_limit_from_then_on(model: Model, renderer: Renderer):
    """As OpenAI's reasoning models answer. Another refusal is not sent again."""
    text = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."

    def answer(body: dict[str, Any]) -> tuple[Any, ...]:
        return (400, {"error": {"message": text}}) if "max_tokens" in body else _chat("Hi.")(body)

    model.answers = [answer]
    policy = ChatPolicy(model.server())
    for _ in range(2):
        assert _generate(policy, renderer, HELLO).message == Message(role="assistant", content="Hi.")
    assert [asked.get("max_tokens") for asked in model.asked] == [5, None, None]
    assert [asked.get("max_completion_tokens") for asked in model.asked] == [None, 5, 5]
    model.answers = [lambda body: (400, {"error": {"message": "max_completion_tokens is too large"}})]
    with pytest.raises(RequestFailed, match="is too large"):
        _generate(policy, renderer, HELLO)
    assert len(model.asked) == 4


def test_each_turn_of_each_sample_has_a_seed_of_its_own(model: Model, renderer: Renderer):
    """The same sample sends the same seeds again."""
    model.answers = [_chat("Hi.")]
    for seed in (1, 1, 2):
        _generate(ChatPolicy(model.server()), renderer, HELLO, HELLO, seed=seed)
    seeds = [asked["seed"] for asked in model.asked]
    assert seeds[:2] == seeds[2:4]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_top_p_and_top_k_are_sent_to_servers(model: Model, renderer: Renderer):
    """By both policies; filtered samples have no log-probabilities to train on."""
    logprobs = {"tokens": ["token_id:5"], "token_logprobs": [-1.0], "text_offset": [0], "top_logprobs": None}
    model.answers = [_chat("Hello."), _completion("length", logprobs, token_ids=[5])]
    sampling = Sampling(temperature=0.7, max_new_tokens=5, seed=1, top_p=0.9, top_k=20)

    async def generate(policy: Policy) -> Generation:
        async with policy.sampler(concurrency=1, renderer=renderer) as sampler:
            return await sampler.open().generate(HELLO, sampling)

    generations = [asyncio.run(generate(kind(model.server()))) for kind in (ChatPolicy, CompletionsPolicy)]
    assert [(asked["top_p"], asked["top_k"]) for asked in model.asked] == [(0.9, 20), (0.9, 20)]
    assert [generation.logprobs for generation in generations] == [None, None]


def test_tool_calls_of_a_chat_server_are_parsed(model: Model, renderer: Renderer):
    """With the text around them; arguments that are not a JSON object make the message malformed."""
    model.answers = [_chat("Let me see.", ("look_up", '{"order": "12"}')), _chat(None, ("look_up", "{12"))]
    policy = ChatPolicy(model.server())
    called = _generate(policy, renderer, HELLO).message
    assert called == Message(
        role="assistant", content="Let me see.", tool_calls=(ToolCall(name="look_up", arguments={"order": "12"}),)
    )
    garbled = _generate(policy, renderer, HELLO).message
    assert garbled is not None
    assert garbled.tool_calls == ()
    assert garbled.malformed == "not a tool call: look_up({12)"


def test_a_refusal_is_the_reply(model: Model, renderer: Renderer):
    """Rewards and gates read its words."""
    answer = _chat(None)
    _, body = answer({})
    body["choices"][0]["message"]["refusal"] = "I cannot help."
    model.answers = [lambda _: (200, body)]
    reply = _generate(ChatPolicy(model.server()), renderer, HELLO).message
    assert reply == Message(role="assistant", content="I cannot help.")


def test_a_length_limited_answer_has_no_stop_token(model: Model, renderer: Renderer):
    """Its turn did not end."""
    model.answers = [_chat("Hi there", finish="length")]
    generation = _generate(ChatPolicy(model.server()), renderer, HELLO)
    assert generation.stop == "length"
    assert renderer.stop_id not in generation.token_ids


def test_every_call_gets_an_id_and_every_id_an_answer():
    """Two calls with one result; a tool message after a malformed call."""
    calls = (ToolCall(name="f", arguments={}), ToolCall(name="g", arguments={"x": 1}))
    converted = to_openai_messages(
        [
            Message(role="user", content="u"),
            Message(role="assistant", content="", tool_calls=calls),
            Message(role="tool", content="both"),
            Message(role="assistant", content="<tool_call>{", malformed="no JSON"),
            Message(role="tool", content="error"),
            Message(role="assistant", content="", tool_calls=calls),
            Message(role="tool", content="one"),
            Message(role="tool", content="two"),
        ]
    )
    assert [(message["role"], message.get("tool_call_id"), message["content"]) for message in converted] == [
        ("user", None, "u"),
        ("assistant", None, ""),
        ("tool", "call_1_0", "both"),
        ("tool", "call_1_1", "both"),
        ("assistant", None, "<tool_call>{"),
        ("user", None, "error"),
        ("assistant", None, ""),
        ("tool", "call_5_0", "one"),
        ("tool", "call_5_1", "two"),
    ]
    assert converted[1]["tool_calls"][1] == {
        "id": "call_1_1",
        "type": "function",
        "function": {"name": "g", "arguments": '{"x": 1}'},
    }


def test_an_episode_runs_against_a_chat_server(model: Model, renderer: Renderer):
    """Every turn sends the conversation so far; sampled tokens have NaN log-probabilities."""
    model.answers = [_chat("First."), _chat("Second.")]
    (trajectory,) = collect(
        [Scenario(id="s", user_responses=("hello", "and now"))],
        ChatPolicy(model.server()),
        ConversationEnvironment(system_prompt="Be kind."),
        renderer,
        RolloutSettings(),
        group_size=1,
        temperature=1.0,
        run_seed=0,
        iteration=0,
    )
    assert [m["content"] for m in model.asked[1]["messages"]] == ["Be kind.", "hello", "First.", "and now"]
    assert [m.content for m in trajectory.messages] == ["Be kind.", "hello", "First.", "and now", "Second."]
    assert np.array_equal(np.isnan(trajectory.sampler_logprobs), trajectory.loss_mask)


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_a_completions_server_reads_and_returns_token_ids_with_log_probabilities(model: Model, renderer: Renderer):
    """The stop token is recorded, and a completion is part of the next prompt."""
    stop = renderer.stop_id
    first = {"tokens": ["x", "y"], "token_logprobs": [-0.5, -0.25]}
    model.answers = [
        _completion(logprobs=first, token_ids=[77, stop], prompt_token_ids=[5, 20, 31]),
        _completion("length", logprobs={"tokens": ["z"], "token_logprobs": [-2.0]}, token_ids=[78]),
    ]
    policy = CompletionsPolicy(model.server(), policy_hash="abc")
    generation = _generate(policy, renderer, HELLO)
    assert (generation.token_ids, generation.logprobs, generation.stop, generation.message) == (
        [77, stop],
        [-0.5, -0.25],
        "stop",
        None,
    )
    model.asked.clear()
    limited = _generate(policy, renderer, HELLO, Prompt(new_ids=[9]))
    assert (limited.token_ids, limited.logprobs, limited.stop) == ([78], [-2.0], "length")
    assert model.asked[0]["path"] == "/v1/completions"
    assert [asked["prompt"] for asked in model.asked] == [[5, 20, 31], [5, 20, 31, 77, stop, 9]]
    sent = {name: model.asked[0][name] for name in ("temperature", "top_p", "top_k", "max_tokens", "stop_token_ids")}
    assert sent == {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "max_tokens": 5, "stop_token_ids": [stop]}
    assert model.asked[0]["seed"] != model.asked[1]["seed"]


def test_the_likeliest_tokens_of_a_completions_server(model: Model, renderer: Renderer):
    """Two of each step, likeliest first; the server adds the sampled token to the first step."""
    steps = [
        {"token_id:9": -3.0, "token_id:5": -0.25, "token_id:7": -2.0},
        {"token_id:8": -0.5, f"token_id:{renderer.stop_id}": -1.5},
    ]
    logprobs = {"tokens": ["x", "y"], "token_logprobs": [-3.0, -1.5], "top_logprobs": steps}
    model.answers = [_completion(logprobs=logprobs, token_ids=[9, renderer.stop_id])]
    generation = _generate(CompletionsPolicy(model.server()), renderer, HELLO, top_logprobs=2)
    assert model.asked[0]["logprobs"] == 2
    assert generation.top_logprobs == [((5, -0.25), (7, -2.0)), ((8, -0.5), (renderer.stop_id, -1.5))]


@pytest.mark.parametrize("steps", [None, [{"x": -0.5}, {"y": -0.5}]])
def test_a_completions_server_without_likeliest_tokens_is_refused(model: Model, renderer: Renderer, steps: object):
    """None, and tokens by their texts, when they are asked for."""
    logprobs = {"tokens": ["x", "y"], "token_logprobs": [-3.0, -1.5], "top_logprobs": steps}
    model.answers = [_completion(logprobs=logprobs, token_ids=[9, renderer.stop_id])]
    with pytest.raises(PolicyError, match="no likeliest tokens"):
        _generate(CompletionsPolicy(model.server()), renderer, HELLO, top_logprobs=2)


def test_a_chat_server_has_no_likeliest_tokens(model: Model, renderer: Renderer):
    """An error before a request, not an empty list."""
    with pytest.raises(ConfigError, match="top_logprobs 2"):
        _generate(ChatPolicy(model.server()), renderer, HELLO, top_logprobs=2)
    assert not model.asked


def test_token_ids_are_parsed_from_token_names(model: Model, renderer: Renderer):
    """For servers that support return_tokens_as_token_ids only."""
    names = ["token_id:77", f"token_id:{renderer.stop_id}"]
    model.answers = [_completion(logprobs={"tokens": names, "token_logprobs": [-0.5, -0.25]})]
    generation = _generate(CompletionsPolicy(model.server()), renderer, HELLO)
    assert generation.token_ids == [77, renderer.stop_id]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (_completion(), "gives no token ids and log-probabilities, so it cannot be trained on. Use it for evaluation"),
        (_completion(logprobs={"tokens": ["a"], "token_logprobs": [-1.0]}), "gives no token ids"),
        (_completion(token_ids=[77]), "gives no token ids and log-probabilities"),
        (_completion(token_ids=[7, 8], logprobs={"tokens": ["a"], "token_logprobs": [-1.0]}), "gives no token ids"),
        (_completion(token_ids=[7], logprobs={"tokens": ["a"], "token_logprobs": [None]}), "gives no token ids"),
        (
            _completion(token_ids=[7], logprobs={"tokens": ["a"], "token_logprobs": [-1.0]}),
            r"ended a turn on token 7, not on a stop token of the renderer, 1\.",
        ),
        (
            _completion(
                "length", {"tokens": ["a"], "token_logprobs": [-1.0]}, token_ids=[7], prompt_token_ids=[1, 5, 20, 31]
            ),
            "read other tokens than were sent",
        ),
    ],
)
def test_a_completions_server_without_ids_or_log_probabilities_is_refused(
    model: Model, renderer: Renderer, answer: Answer, problem: str
):
    """No value is invented."""
    model.answers = [answer]
    with pytest.raises(PolicyError, match=problem):
        _generate(CompletionsPolicy(model.server()), renderer, HELLO)


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_a_server_error_is_retried(model: Model, renderer: Renderer):
    """500, then an answer."""
    model.answers = [lambda body: (500, {}), _chat("Hi.")]
    assert _generate(ChatPolicy(model.server()), renderer, HELLO).message == Message(role="assistant", content="Hi.")
    assert len(model.asked) == 2


def test_a_persistent_server_error_is_a_connection_error(model: Model, renderer: Renderer):
    """After the configured retries, as a stage may be retried later."""
    model.answers = [lambda body: (503, {})]
    with pytest.raises(ConnectionError, match="answered HTTP 503, tried 2 times"):
        _generate(ChatPolicy(model.server(retries=1)), renderer, HELLO)
    assert len(model.asked) == 2


def test_a_hanging_server_is_a_timeout(model: Model, renderer: Renderer):
    """After the timeout of one attempt."""
    model.answers = [model.hanging]
    with pytest.raises(TimeoutError, match=r"gave no answer in 1 tries of 0\.2 s"):
        _generate(ChatPolicy(model.server(timeout_s=0.2, retries=0)), renderer, HELLO)


def test_a_hanging_server_fails_the_episode_at_the_turn_timeout(model: Model, renderer: Renderer):
    """The rollout's timeout expires first."""
    model.answers = [model.hanging]
    (trajectory,) = collect(
        [Scenario(id="s", user_responses=("hello",))],
        ChatPolicy(model.server()),
        ConversationEnvironment(),
        renderer,
        RolloutSettings(turn_timeout_s=0.2, error_budget=1.0),
        group_size=1,
        temperature=1.0,
        run_seed=0,
        iteration=0,
    )
    assert trajectory.error is not None
    assert trajectory.error.startswith(
        "TimeoutError: turn 1 of the policy took longer than 0.2 s (rollout.turn_timeout_s)"
    )


def test_an_unreachable_server_is_a_connection_error(renderer: Renderer):
    """Port 9 of loopback is closed."""
    with pytest.raises(ConnectionError, match="cannot be reached, tried 1 times"):
        _generate(ChatPolicy(OpenAIEndpoint(base_url="http://127.0.0.1:9/v1", model="m", retries=0)), renderer, HELLO)


def test_a_response_of_another_format_is_refused(model: Model, renderer: Renderer):
    """Other JSON, a page, broken JSON."""
    for answer in (
        {"choices": []},
        {"choices": [{"index": 0}]},
        {"choices": ["a"]},
        {"detail": "ok"},
        "<html>",
        "{",
        [],
    ):
        model.answers = [lambda body, answer=answer: (200, answer)]  # type: ignore[misc]
        with pytest.raises(PolicyError, match="does not answer in the format of the OpenAI API"):
            _generate(ChatPolicy(model.server()), renderer, HELLO)


@pytest.mark.parametrize(
    "content",
    ["[" * 100_000 + "]" * 100_000, "9" * 5_000, '{"choices": [{"message": {"content": 5}, "finish_reason": 1}]}'],
)
def test_a_response_that_breaks_a_parser_is_refused(model: Model, renderer: Renderer, content: str):
    """A hundred thousand levels, a number that Python does not convert, a number for a text."""
    model.answers = [lambda body: (200, content)]
    with pytest.raises(PolicyError, match="does not answer in the format of the OpenAI API"):
        _generate(ChatPolicy(model.server()), renderer, HELLO)


@pytest.mark.parametrize(
    ("logprobs", "ids"),
    [("[NaN]", "[7]"), ('["a"]', "[7]"), ("[-1.0]", "[-7]"), ("[-1.0]", "[4294967296]"), ("[1e999]", "[7]")],
)
def test_a_completion_with_impossible_numbers_is_refused(model: Model, renderer: Renderer, logprobs: str, ids: str):
    """Log-probabilities that are no finite numbers, and token ids that no vocabulary has."""
    choice = (
        f'{{"text": "", "finish_reason": "length", "token_ids": {ids}, "logprobs": {{"token_logprobs": {logprobs}}}}}'
    )
    model.answers = [lambda body: (200, f'{{"choices": [{choice}]}}')]
    with pytest.raises(PolicyError, match="does not answer in the format of the OpenAI API"):
        _generate(CompletionsPolicy(model.server()), renderer, HELLO)


def test_a_list_of_parts_is_not_a_reply(model: Model, renderer: Renderer):
    """Some servers answer with parts, which would become an empty reply."""
    model.answers = [says([{"type": "text", "text": "Hi."}])]
    with pytest.raises(PolicyError, match="answered with a list of parts instead of a text"):
        _generate(ChatPolicy(model.server()), renderer, HELLO)


def test_a_reply_is_read_up_to_a_bound(model: Model, renderer: Renderer):
    """A server that sends more than 32 MiB."""
    model.answers = [lambda body: (200, " " * (2**25 + 1))]
    with pytest.raises(PolicyError, match="cannot be used: its reply has more than 32 MiB"):
        _generate(ChatPolicy(model.server(retries=0)), renderer, HELLO)


def test_a_compressed_reply_is_refused(model: Model, renderer: Renderer):
    """The request asks for a plain one, because a megabyte can hold a gigabyte of zeros."""
    model.answers = [lambda body: (200, "x", {"content-encoding": "gzip"})]
    with pytest.raises(PolicyError, match="cannot be used: its reply is compressed"):
        _generate(ChatPolicy(model.server(retries=0)), renderer, HELLO)
    assert model.encodings == ["identity"]


def test_a_reply_that_never_ends_is_a_timeout(model: Model, renderer: Renderer):
    """The server sends a space fifty times a second, and never is silent for the timeout."""
    model.answers = [lambda body: (200, DRIPPING)]
    with pytest.raises(TimeoutError, match=r"gave no answer in 1 tries of 0\.3 s"):
        _generate(ChatPolicy(model.server(timeout_s=0.3, retries=0)), renderer, HELLO)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_conversation_is_sent_nowhere_else(model: Model, renderer: Renderer, status: int):
    """A redirect to another server is an error that names it."""
    other = Model()
    other.answers = [_chat("Hi.")]
    model.answers = [lambda body: (status, {}, {"location": f"{other.url}/chat/completions"})]
    try:
        with pytest.raises(PolicyError, match=rf"redirects to '{other.url}/chat/completions' \(HTTP {status}\)"):
            _generate(ChatPolicy(model.server()), renderer, HELLO)
    finally:
        other.close()
    assert not other.asked
    assert len(model.asked) == 1


@pytest.mark.parametrize("status", [401, 403, 400, 404, 500])
def test_the_api_key_is_in_no_error(model: Model, renderer: Renderer, status: int):
    """Even if the server repeats it; nor in the error's cause or context."""
    model.answers = [lambda body: (status, {"error": {"message": f"bad key {SECRET}", "code": SECRET}})]
    policy = ChatPolicy(model.server(retries=0))
    with pytest.raises((PolicyError, ConnectionError), match=f"HTTP {status}") as error_info:
        _generate(policy, renderer, HELLO)
    assert error_info.value.__context__ is None
    assert error_info.value.__cause__ is None
    assert SECRET not in f"{error_info.value!r} {policy!r} {vars(policy)!r} {policy.endpoint!r}"


def test_a_refused_key_names_its_environment_variable(model: Model, renderer: Renderer):
    """Without a retry."""
    model.answers = [lambda body: (401, {})]
    with pytest.raises(PolicyError, match=r"refuses the key in OPENAI_API_KEY \(HTTP 401\)"):
        _generate(ChatPolicy(model.server()), renderer, HELLO)
    assert len(model.asked) == 1


def test_an_invalid_key_is_refused_without_showing_it(model: Model, renderer: Renderer, monkeypatch):
    """A pasted quotation mark."""
    monkeypatch.setenv("OPENAI_API_KEY", f"“{SECRET}”")
    with pytest.raises(PolicyError, match="OPENAI_API_KEY holds characters that a key cannot have") as error_info:
        _generate(ChatPolicy(model.server()), renderer, HELLO)
    assert SECRET not in str(error_info.value)
