from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from grpo.log.folder import ServedLog
from grpo.log.join import join
from grpo.messages import Message
from grpo.policy.openai import CompletionsPolicy
from grpo.policy.openai_endpoint import OpenAIEndpoint
from grpo.policy.policy import Generation, Policy, Prompt, Sampling
from grpo.renderers.chat_template import Renderer
from tests.grpo.serving.chat_servers import ChatServer, chat_server, load_clerk

HELLO = [Message(role="user", content="Hello, where is my order 1234?")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    with chat_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(load_clerk().tokenizer)


def turns(policy: Policy, renderer: Renderer, samplings: list[Sampling], prompts: list[list[int]]) -> list[Generation]:
    """Turns of one conversation."""

    async def play() -> list[Generation]:
        async with policy.sampler(concurrency=1, renderer=renderer) as sampler:
            session = sampler.open()
            pairs = zip(prompts, samplings, strict=True)
            return [await session.generate(Prompt(new_ids=ids), sampling) for ids, sampling in pairs]

    return asyncio.run(play())


def test_a_policy_of_the_server_samples_what_the_model_samples(
    server: ChatServer, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
):
    """Two turns. The protocol has one seed, so turn k has the numbers of turn 0 of a conversation with its seed."""
    monkeypatch.setenv("OPENAI_API_KEY", server.client().api_key)
    policy = CompletionsPolicy(OpenAIEndpoint(base_url=f"{server.url}/v1", model="clerk"), policy_hash="x")
    sampling = Sampling(temperature=0.9, max_new_tokens=24, seed=11, top_logprobs=2)
    first = renderer.build_prompt(HELLO)
    reply = turns(policy, renderer, [sampling], [first])[0]
    messages = [*HELLO, renderer.parse_reply(reply.token_ids)]
    now = [Message(role="user", content="And now?")]
    second = renderer.build_continuation(messages, now, ended_by=reply.token_ids[-1])
    remote = turns(policy, renderer, [sampling] * 2, [first, second])
    local = load_clerk()
    expected = []
    for turn in range(2):
        ids = first if turn == 0 else [*first, *expected[0].token_ids, *second]
        seeded = Sampling(temperature=0.9, max_new_tokens=24, seed=sampling.turn_seed(turn), top_logprobs=2)
        expected += turns(local, renderer, [seeded], [ids])
    assert [turn.token_ids for turn in remote] == [turn.token_ids for turn in expected]
    for mine, theirs in zip(remote, expected, strict=True):
        assert mine.stop == theirs.stop
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
        assert [top[0][0] for top in mine.top_logprobs or ()] == [top[0][0] for top in theirs.top_logprobs or ()]
    last = server.turns()[-1]
    assert last.token_ids.tolist() == [*first, *expected[0].token_ids, *second, *expected[1].token_ids]
    assert last.loss_mask.sum() == len(expected[1].token_ids)
    assert (last.status, last.consent, last.is_completion) == ("answered", "", True)


def test_an_error_of_the_engine_is_counted_and_logged(server: ChatServer, monkeypatch: pytest.MonkeyPatch):
    """500, one error, and a failed turn with its reason."""
    version = server.service.versions.current
    assert version is not None

    async def broken(renderer: object) -> None:
        raise RuntimeError("no memory is left")

    monkeypatch.setattr(version, "open", broken)
    before = server.service.counts.errors
    with pytest.raises(openai.InternalServerError):
        server.client().completions.create(model="clerk", prompt="Hello", max_tokens=2)
    assert server.service.counts.errors == before + 1
    last = server.turns()[-1]
    assert (last.status, last.reason) == ("failed", "RuntimeError: no memory is left")


def test_a_completion_belongs_to_no_conversation(server: ChatServer):
    """It is counted among the turns that were not joined: a program has written its prompt."""
    server.client().completions.create(model="clerk", prompt="Hello", max_tokens=2)
    joined = join(ServedLog(server.folder / "log").read())
    counts = joined.counts
    assert joined.conversations == ()
    assert counts.unjoined == {"completion of a raw prompt": counts.answered}
    assert counts.answered > 0


def test_each_parameter_of_a_completion_has_its_effect(server: ChatServer, renderer: Renderer):
    client = server.client()

    def complete(**fields: object) -> openai.types.Completion:
        extra = {name: fields.pop(name) for name in [*fields] if name.startswith(("return", "skip", "stop_", "top_k"))}
        return client.completions.create(model="clerk", extra_body=extra, **{"prompt": ids, "seed": 1, **fields})  # type: ignore[call-overload, no-any-return]

    ids = renderer.build_prompt(HELLO)
    whole = complete(max_tokens=12, return_token_ids=True, skip_special_tokens=False, logprobs=0)
    choice = whole.choices[0]
    tokens = choice.model_extra["token_ids"]  # type: ignore[index]
    decode = renderer.tokenizer.decode
    assert choice.text == decode(tokens)
    assert choice.model_extra["prompt_token_ids"] == ids  # type: ignore[index]
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(ids), len(tokens))
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == [decode([token]) for token in tokens]
    assert choice.logprobs.text_offset == [len(decode(tokens[:k])) for k in range(len(tokens))]
    assert [len(top) for top in choice.logprobs.top_logprobs or ()] == [1] * len(tokens)
    named = complete(max_tokens=12, logprobs=3, return_tokens_as_token_ids=True).choices[0].logprobs
    assert named is not None
    assert named.tokens == [f"token_id:{token}" for token in tokens]
    assert {len(top) for top in named.top_logprobs or ()} <= {3, 4}
    for same in (decode(ids), [decode(ids)], [ids]):
        assert complete(prompt=same, max_tokens=12).choices[0].text == complete(max_tokens=12).choices[0].text
    short = complete(max_tokens=2)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 2)  # type: ignore[union-attr]
    word = decode(tokens[3:5])
    stopped = complete(max_tokens=12, stop=word, skip_special_tokens=False).choices[0]
    assert (stopped.text, stopped.finish_reason) == (choice.text[: choice.text.index(word)], "stop")
    at_token = complete(max_tokens=12, stop_token_ids=[tokens[2]], return_token_ids=True).choices[0]
    assert at_token.model_extra["token_ids"] == tokens[: tokens.index(tokens[2]) + 1]  # type: ignore[index]
    several = complete(max_tokens=6, n=3).choices
    assert len({several[0].text, several[1].text, several[2].text}) > 1
    assert several[0].text == complete(max_tokens=6).choices[0].text
    greedy = {complete(max_tokens=6, seed=seed, **how).choices[0].text for seed in range(4) for how in
              ({"temperature": 0}, {"top_k": 1}, {"top_p": 0.0001})}  # fmt: skip
    assert len(greedy) == 1
    assert len({complete(max_tokens=6, seed=seed).choices[0].text for seed in range(4)}) > 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"stream": True}, "stream"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"min_p": 0.1}, "min_p"),
        ({"top_k": 2**63}, "top_k"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [["a"]]}, "prompt"),
        ({"prompt": [5, -1]}, "prompt[1]"),
        ({"prompt": [[1] * 100_000]}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [1] * 100_000}, "prompt"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"colour": 1}, "colour"),
        ({"model": "other"}, "model"),
    ],
)
def test_a_parameter_without_effect_is_refused_by_its_name(server: ChatServer, fields: dict[str, object], param: str):
    body = {"model": "clerk", "prompt": "Hello", **fields}
    with pytest.raises(openai.APIStatusError) as refused:
        server.client().post("/completions", body=body, cast_to=object)
    assert refused.value.status_code in (400, 404)
    assert str(refused.value.body["param"]).startswith(param)  # type: ignore[index]
