from __future__ import annotations

import asyncio

import pytest

from grpo.policy.policy import SampledToken
from grpo.renderers.chat_template import Renderer
from grpo.serving.requests.token_stream import TokenStream
from tests.grpo.serving.chat_servers import load_clerk


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(load_clerk().tokenizer)


def tokens(renderer: Renderer, text: str) -> list[SampledToken]:
    ids = renderer.tokenizer.encode(text, add_special_tokens=False)
    return [SampledToken(id=id_, logprob=-0.5, top_logprobs=((id_, -0.5),)) for id_ in ids]


def test_the_text_is_that_of_the_tokens_without_the_stop_token(renderer: Renderer):
    """Also a character of several tokens, which is complete with its last one."""

    async def run() -> TokenStream:
        stream = TokenStream(renderer, ())
        for token in [*tokens(renderer, "Größe 🎈 ok"), SampledToken(id=renderer.stop_id, logprob=0.0)]:
            assert not stream(token)
            assert "\ufffd" not in stream.text
        return stream

    stream = asyncio.run(run())
    assert stream.text == stream.settled() == "Größe 🎈 ok"
    assert len(stream.take()) == len(stream.tokens) - 1
    assert stream.take() == ()


def test_a_stop_text_ends_the_turn_and_its_beginnings_are_held(renderer: Renderer):
    """With STOP as a stop text, `a S` settles `a `, `a STOP b` ends with `a `."""

    async def run() -> tuple[TokenStream, list[str], list[bool]]:
        stream, settled, ended = TokenStream(renderer, ("STOP", "never")), [], []
        for token in tokens(renderer, "a STOP b"):
            ended.append(stream(token))
            settled.append(stream.settled())
            if ended[-1]:
                break
        return stream, settled, ended

    stream, settled, ended = asyncio.run(run())
    assert ended[-1]
    assert not any(ended[:-1])
    assert stream.stopped_text == settled[-1] == "a "
    assert all("a ".startswith(text) for text in settled)


def test_tokens_that_come_before_they_are_read_are_waited_for_once(renderer: Renderer):
    async def run() -> None:
        stream = TokenStream(renderer, ())
        sampled = tokens(renderer, "one two three four")
        for token in sampled:
            stream(token)
        await asyncio.wait_for(stream.wait(), 240)
        assert len(stream.tokens) == len(sampled)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.wait(), 0.05)
        stream(sampled[0])
        await asyncio.wait_for(stream.wait(), 240)

    asyncio.run(run())
