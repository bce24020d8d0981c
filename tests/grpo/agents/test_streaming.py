from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.reasoning import stable_prefix
from grpo.agents.tool_agent import ToolAgent
from grpo.config.agent import AgentConfig
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.byte_renderer import ByteRenderer
from grpo.renderers.chat_template import Renderer
from tests.grpo.agents.fixtures import make_agent, run, stub


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


class Typist:
    """A backend that generates one text byte by byte."""

    hash, max_context = "typist", 10_000

    def __init__(self, text: str) -> None:
        self.text = text
        self.generated = 0

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[Typist]:
        yield self

    def open(self) -> Typist:
        return self

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        ids = [*self.text.encode(), ByteRenderer().stop_id]
        for token in ids:
            if prompt.on_token is not None:
                prompt.on_token(token)
            self.generated += 1
            await asyncio.sleep(0)
        return Generation(token_ids=ids, logprobs=None, stop="stop")

    def close(self) -> None:
        pass


async def _chunks(agent: MultiTurnAgent, text: str = "hello") -> list[str]:
    return [chunk async for chunk in agent.stream_response(text)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_streamed_chunks_join_to_the_whole_reply(policy: TransformersPolicy, temperature: float, seed: int):
    """Greedy and sampled, from a random model whose tokens are often incomplete characters."""
    settings = {"max_new_tokens": 24, "temperature": temperature, "seed": seed}
    whole = run(make_agent(policy, **settings).generate_response("hello"))
    chunks = run(_chunks(make_agent(policy, **settings)))
    assert "".join(chunks) == whole
    assert len(chunks) > 1


def test_the_first_chunk_is_sent_before_the_last_token_is_sampled():
    """At the first chunk fewer than four tokens are generated."""

    async def first() -> tuple[str, int]:
        typist = Typist("a long reply")
        agent = MultiTurnAgent(policy=typist)  # type: ignore[arg-type]
        await agent.initialize()
        stream = agent.stream_response("hello")
        chunk = await anext(stream)
        generated = typist.generated
        await stream.aclose()  # type: ignore[attr-defined]
        return chunk, generated

    chunk, generated = run(first())
    assert chunk == "a"
    assert generated < 4


def test_multi_byte_characters_are_sent_whole():
    """Each of é, 漢 and 🙂 is one chunk, though its bytes are separate tokens."""
    agent = make_agent(Typist("é漢🙂"))  # type: ignore[arg-type]
    assert run(_chunks(agent)) == ["é", "漢", "🙂"]


def test_reasoning_is_not_sent():
    """Only the answer after it."""
    agent = make_agent(Typist("<think>hm</think> yes"), enable_reasoning=True)  # type: ignore[arg-type]
    assert run(_chunks(agent)) == ["y", "e", "s"]


def test_white_space_around_a_reply_is_not_sent():
    """The reply is stripped; white space inside it is sent."""
    agent = make_agent(Typist("  a b  "))  # type: ignore[arg-type]
    assert run(_chunks(agent)) == ["a", " b"]


def test_a_backend_without_token_callbacks_sends_one_chunk():
    """A scripted policy returns the whole reply."""
    assert run(_chunks(stub("Hello there."))) == ["Hello there."]


def test_a_subclass_with_hooks_sends_one_chunk():
    """The sampled chunks are not the reply."""

    class Loud(MultiTurnAgent):
        async def generate_response(self, messages: Any, context: Any = None) -> str:
            return (await super().generate_response(messages, context)).upper()

    assert run(_chunks(make_agent(Typist("abc"), Loud))) == ["ABC"]  # type: ignore[arg-type]


def test_tool_calls_are_not_sent():
    """The reply is the text after the result."""
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    config = AgentConfig(use_stub_model=True, stub_responses=(call, "It is noon."))
    agent = ToolAgent(config, [{"name": "now", "function": lambda: 12}])
    run(agent.initialize())
    assert run(_chunks(agent)) == ["It is noon."]


def test_a_policy_error_is_raised_to_the_caller():
    """It is raised after the chunks that were sent."""

    class Broken(Typist):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        run(_chunks(make_agent(Broken("x"))))  # type: ignore[arg-type]


def test_the_stable_prefix_excludes_what_further_tokens_may_change():
    """Incomplete characters, trailing white space and reasoning are held back."""
    assert stable_prefix(" a b \ufffd", reasoning=False) == "a b"
    assert stable_prefix("a </th", reasoning=True) == ""
    assert stable_prefix("a </think> b", reasoning=True) == "b"
