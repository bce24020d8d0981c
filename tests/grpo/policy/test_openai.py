from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo.config.rollout import RolloutSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.errors import PolicyError
from grpo.messages import Message, Tool, ToolCall
from grpo.policy.openai import ChatPolicy, CompletionsPolicy, to_openai_messages
from grpo.policy.openai_endpoint import OpenAIEndpoint
from grpo.policy.policy import Generation, Policy, Prompt, Sampling
from grpo.policy.transformers.model import load_tokenizer
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenarios.scenario import Scenario
from tests.model_server import Answer, Model

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


def _ask(policy: Policy, renderer: Renderer, *prompts: Prompt, seed: int = 1, temperature: float = 0.7) -> Generation:
    """The answer to the last of the prompts of one conversation."""

    async def run() -> Generation:
        async with policy.sampler(concurrency=1, renderer=renderer) as sampler:
            session = sampler.open()
            sampling = Sampling(temperature=temperature, max_new_tokens=5, seed=seed)
            return [await session.generate(prompt, sampling) for prompt in prompts][-1]

    return asyncio.run(run())


HELLO = Prompt(new_ids=[5, 20, 31], messages=(Message(role="user", content="hello"),))


# ---- chat ------------------------------------------------------------------------------------------------------------


def test_a_chat_server_reads_messages_and_tools_and_answers_with_a_message(model: Model, renderer: Renderer):
    """What is sampled how is sent along; the tokens are the renderer's, their log-probabilities unknown."""
    model.answers = [_chat("Hi there.")]
    said = _ask(ChatPolicy(model.server()), renderer, HELLO)
    assert said.message == Message(role="assistant", content="Hi there.")
    assert (said.token_ids, said.logprobs, said.stop) == (renderer.encode_reply(said.message), None, "stop")
    (asked,) = model.asked
    assert (asked["path"], asked["model"]) == ("/v1/chat/completions", "clerk")
    assert asked["messages"] == [{"role": "user", "content": "hello"}]
    assert asked["tools"] == [LOOK_UP.to_template()]
    assert (asked["temperature"], asked["max_tokens"]) == (0.7, 5)
    assert model.keys == [f"Bearer {SECRET}"]


def test_each_turn_of_each_sample_has_a_seed_of_its_own(model: Model, renderer: Renderer):
    """The same sample asks with the same seeds again."""
    model.answers = [_chat("Hi.")]
    for seed in (1, 1, 2):
        _ask(ChatPolicy(model.server()), renderer, HELLO, HELLO, seed=seed)
    seeds = [asked["seed"] for asked in model.asked]
    assert seeds[:2] == seeds[2:4]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_servers_are_told_from_what_to_draw(model: Model, renderer: Renderer):
    """top_p and top_k reach both kinds; what was drawn so has no log-probabilities to train on."""
    logprobs = {"tokens": ["token_id:5"], "token_logprobs": [-1.0], "text_offset": [0], "top_logprobs": None}
    model.answers = [_chat("Hello."), _completion("length", logprobs, token_ids=[5])]
    sampling = Sampling(temperature=0.7, max_new_tokens=5, seed=1, top_p=0.9, top_k=20)

    async def ask(policy: Policy) -> Generation:
        async with policy.sampler(concurrency=1, renderer=renderer) as sampler:
            return await sampler.open().generate(HELLO, sampling)

    said = [asyncio.run(ask(kind(model.server()))) for kind in (ChatPolicy, CompletionsPolicy)]
    assert [(asked["top_p"], asked["top_k"]) for asked in model.asked] == [(0.9, 20), (0.9, 20)]
    assert [one.logprobs for one in said] == [None, None]


def test_a_chat_server_s_calls_are_the_agent_s_calls(model: Model, renderer: Renderer):
    """With the words around them; arguments that are no JSON object make the message malformed, as a model's would."""
    model.answers = [_chat("Let me see.", ("look_up", '{"order": "12"}')), _chat(None, ("look_up", "{12"))]
    policy = ChatPolicy(model.server())
    called = _ask(policy, renderer, HELLO).message
    assert called == Message(
        role="assistant", content="Let me see.", tool_calls=(ToolCall(name="look_up", arguments={"order": "12"}),)
    )
    garbled = _ask(policy, renderer, HELLO).message
    assert garbled is not None
    assert garbled.tool_calls == ()
    assert garbled.malformed == 'not a tool call: {"name": "look_up", "arguments": {12}'


def test_an_answer_that_was_cut_off_did_not_end_its_turn(model: Model, renderer: Renderer):
    """No stop token in the record."""
    model.answers = [_chat("Hi there", finish="length")]
    said = _ask(ChatPolicy(model.server()), renderer, HELLO)
    assert said.stop == "length"
    assert renderer.stop_id not in said.token_ids


def test_every_call_gets_an_id_and_every_id_an_answer():
    """Two calls answered at once; a tool that speaks though nothing could be called."""
    calls = (ToolCall(name="f", arguments={}), ToolCall(name="g", arguments={"x": 1}))
    wire = to_openai_messages(
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
    assert [(said["role"], said.get("tool_call_id"), said["content"]) for said in wire] == [
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
    assert wire[1]["tool_calls"][1] == {
        "id": "call_1_1",
        "type": "function",
        "function": {"name": "g", "arguments": '{"x": 1}'},
    }


def test_a_whole_episode_is_played_against_a_chat_server(model: Model, renderer: Renderer):
    """Every turn sends the conversation so far; the record has no log-probability where it spoke."""
    model.answers = [_chat("First."), _chat("Second.")]
    (played,) = collect(
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
    assert [m.content for m in played.messages] == ["Be kind.", "hello", "First.", "and now", "Second."]
    assert np.array_equal(np.isnan(played.sampler_logprobs), played.loss_mask)


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_a_token_server_reads_all_tokens_so_far_and_gives_ids_and_log_probabilities(model: Model, renderer: Renderer):
    """The stop token is part of the record, and what was said is part of the next prompt."""
    stop = renderer.stop_id
    first = {"tokens": ["x", "y"], "token_logprobs": [-0.5, -0.25]}
    model.answers = [
        _completion(logprobs=first, token_ids=[77, stop], prompt_token_ids=[5, 20, 31]),
        _completion("length", logprobs={"tokens": ["z"], "token_logprobs": [-2.0]}, token_ids=[78]),
    ]
    policy = CompletionsPolicy(model.server(), policy_hash="abc")
    said = _ask(policy, renderer, HELLO)
    assert (said.token_ids, said.logprobs, said.stop, said.message) == ([77, stop], [-0.5, -0.25], "stop", None)
    model.asked.clear()
    cut = _ask(policy, renderer, HELLO, Prompt(new_ids=[9]))
    assert (cut.token_ids, cut.logprobs, cut.stop) == ([78], [-2.0], "length")
    assert model.asked[0]["path"] == "/v1/completions"
    assert [asked["prompt"] for asked in model.asked] == [[5, 20, 31], [5, 20, 31, 77, stop, 9]]
    sent = {name: model.asked[0][name] for name in ("temperature", "top_p", "top_k", "max_tokens", "stop_token_ids")}
    assert sent == {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "max_tokens": 5, "stop_token_ids": [stop]}
    assert model.asked[0]["seed"] != model.asked[1]["seed"]


def test_token_ids_are_read_from_the_names_of_the_tokens_too(model: Model, renderer: Renderer):
    """As servers give them that know return_tokens_as_token_ids only."""
    names = ["token_id:77", f"token_id:{renderer.stop_id}"]
    model.answers = [_completion(logprobs={"tokens": names, "token_logprobs": [-0.5, -0.25]})]
    said = _ask(CompletionsPolicy(model.server()), renderer, HELLO)
    assert said.token_ids == [77, renderer.stop_id]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (_completion(), "gives no token ids and log-probabilities, so it cannot be trained on; use it for evaluation"),
        (_completion(logprobs={"tokens": ["a"], "token_logprobs": [-1.0]}), "gives no token ids"),
        (_completion(token_ids=[77]), "gives no token ids and log-probabilities"),
        (_completion(token_ids=[7, 8], logprobs={"tokens": ["a"], "token_logprobs": [-1.0]}), "gives no token ids"),
        (_completion(token_ids=[7], logprobs={"tokens": ["a"], "token_logprobs": [None]}), "gives no token ids"),
        (
            _completion(token_ids=[7], logprobs={"tokens": ["a"], "token_logprobs": [-1.0]}),
            r"ended a turn on token 7, not on the stop token \d+",
        ),
        (
            _completion(
                "length", {"tokens": ["a"], "token_logprobs": [-1.0]}, token_ids=[7], prompt_token_ids=[1, 5, 20, 31]
            ),
            "read other tokens than were sent",
        ),
    ],
)
def test_a_server_without_what_training_needs_is_refused(
    model: Model, renderer: Renderer, answer: Answer, problem: str
):
    """Nothing is made up in its place."""
    model.answers = [answer]
    with pytest.raises(PolicyError, match=problem):
        _ask(CompletionsPolicy(model.server()), renderer, HELLO)


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_a_server_s_hiccup_is_tried_again(model: Model, renderer: Renderer):
    """500, then an answer."""
    model.answers = [lambda body: (500, {}), _chat("Hi.")]
    assert _ask(ChatPolicy(model.server()), renderer, HELLO).message == Message(role="assistant", content="Hi.")
    assert len(model.asked) == 2


def test_a_server_that_stays_broken_is_a_dropped_connection(model: Model, renderer: Renderer):
    """As often as was asked for, and then as something that a later try may mend."""
    model.answers = [lambda body: (503, {})]
    with pytest.raises(ConnectionError, match="answered HTTP 503, tried 2 times"):
        _ask(ChatPolicy(model.server(retries=1)), renderer, HELLO)
    assert len(model.asked) == 2


def test_a_server_that_hangs_is_a_time_out(model: Model, renderer: Renderer):
    """After the seconds that one try may take."""
    model.answers = [model.hanging]
    with pytest.raises(TimeoutError, match=r"gave no answer in 1 tries of 0\.2 s"):
        _ask(ChatPolicy(model.server(timeout_s=0.2, retries=0)), renderer, HELLO)


def test_a_server_that_hangs_fails_the_episode_at_the_deadline_of_a_turn(model: Model, renderer: Renderer):
    """The deadline of the rollout comes first."""
    model.answers = [model.hanging]
    (played,) = collect(
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
    assert played.error == "TimeoutError: turn 1 of the policy took longer than 0.2 s (rollout.turn_timeout_s)"


def test_a_server_that_is_not_there_is_a_dropped_connection(renderer: Renderer):
    """Port 9 of loopback answers nobody."""
    with pytest.raises(ConnectionError, match="cannot be reached, tried 1 times"):
        _ask(ChatPolicy(OpenAIEndpoint(base_url="http://127.0.0.1:9/v1", model="m", retries=0)), renderer, HELLO)


def test_what_is_no_answer_of_the_protocol_is_refused(model: Model, renderer: Renderer):
    """Neither JSON of another kind nor a page."""
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
        with pytest.raises(PolicyError, match="does not answer as OpenAI's protocol says"):
            _ask(ChatPolicy(model.server()), renderer, HELLO)


@pytest.mark.parametrize("status", [401, 403, 400, 404, 500])
def test_the_key_stands_in_no_error(model: Model, renderer: Renderer, status: int):
    """Not even where the server repeats it; nor in anything that the error drags along."""
    model.answers = [lambda body: (status, {"error": {"message": f"bad key {SECRET}", "code": SECRET}})]
    policy = ChatPolicy(model.server(retries=0))
    with pytest.raises((PolicyError, ConnectionError), match=f"HTTP {status}") as caught:
        _ask(policy, renderer, HELLO)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    assert SECRET not in f"{caught.value!r} {policy!r} {vars(policy)!r} {policy.server!r}"


def test_a_refused_key_names_the_variable_that_holds_it(model: Model, renderer: Renderer):
    """And is not tried again."""
    model.answers = [lambda body: (401, {})]
    with pytest.raises(PolicyError, match=r"refuses the key in OPENAI_API_KEY \(HTTP 401\)"):
        _ask(ChatPolicy(model.server()), renderer, HELLO)
    assert len(model.asked) == 1


def test_a_key_that_no_header_can_hold_is_refused_unseen(model: Model, renderer: Renderer, monkeypatch):
    """A pasted quotation mark is told, not shown."""
    monkeypatch.setenv("OPENAI_API_KEY", f"“{SECRET}”")
    with pytest.raises(PolicyError, match="OPENAI_API_KEY holds characters that a key cannot have") as caught:
        _ask(ChatPolicy(model.server()), renderer, HELLO)
    assert SECRET not in str(caught.value)
