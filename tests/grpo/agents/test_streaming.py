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
from tests.grpo.agents.parts import run, speaking, stub


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


class Typist:
    """A backend that says one text byte by byte."""

    hash, max_context = "typist", 10_000

    def __init__(self, text: str) -> None:
        self.text = text
        self.told = 0

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
            self.told += 1
            await asyncio.sleep(0)
        return Generation(token_ids=ids, logprobs=None, stop="stop")

    def close(self) -> None:
        pass


async def _pieces(agent: MultiTurnAgent, text: str = "hello") -> list[str]:
    return [piece async for piece in agent.stream_response(text)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_streamed_chunks_join_to_the_whole_reply(policy: TransformersPolicy, temperature: float, seed: int):
    """Greedy and drawn, from a random model whose bytes are often no whole characters."""
    settings = {"max_new_tokens": 24, "temperature": temperature, "seed": seed}
    whole = run(speaking(policy, **settings).generate_response("hello"))
    pieces = run(_pieces(speaking(policy, **settings)))
    assert "".join(pieces) == whole
    assert len(pieces) > 1


def test_the_first_piece_comes_before_the_last_is_sampled():
    """When the first letter arrives the backend has most of its text before it."""

    async def first() -> tuple[str, int]:
        typist = Typist("a long reply")
        agent = MultiTurnAgent(policy=typist)  # type: ignore[arg-type]
        await agent.initialize()
        stream = agent.stream_response("hello")
        piece = await anext(stream)
        told = typist.told
        await stream.aclose()  # type: ignore[attr-defined]
        return piece, told

    piece, told = run(first())
    assert piece == "a"
    assert told < 4


def test_characters_of_several_bytes_come_whole():
    """Each of é, 漢 and 🙂 is one piece, though its bytes were said one by one."""
    agent = speaking(Typist("é漢🙂"))  # type: ignore[arg-type]
    assert run(_pieces(agent)) == ["é", "漢", "🙂"]


def test_thinking_is_not_sent():
    """Only what follows it."""
    agent = speaking(Typist("<think>hm</think> yes"), enable_reasoning=True)  # type: ignore[arg-type]
    assert run(_pieces(agent)) == ["y", "e", "s"]


def test_white_space_around_a_reply_is_not_sent():
    """As the whole reply has none; inside it stays."""
    agent = speaking(Typist("  a b  "))  # type: ignore[arg-type]
    assert run(_pieces(agent)) == ["a", " b"]


def test_a_backend_that_is_silent_until_the_end_gives_one_piece():
    """A script is said at once."""
    assert run(_pieces(stub("Hello there."))) == ["Hello there."]


def test_what_a_hook_may_still_change_comes_in_one_piece():
    """The pieces that were said are not those that are sent."""

    class Loud(MultiTurnAgent):
        async def generate_response(self, messages: Any, context: Any = None) -> str:
            return (await super().generate_response(messages, context)).upper()

    assert run(_pieces(speaking(Typist("abc"), Loud))) == ["ABC"]  # type: ignore[arg-type]


def test_calls_of_tools_are_not_sent():
    """The reply is what it says after the result."""
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    config = AgentConfig(use_stub_model=True, stub_responses=(call, "It is noon."))
    agent = ToolAgent(config, [{"name": "now", "function": lambda: 12}])
    run(agent.initialize())
    assert run(_pieces(agent)) == ["It is noon."]


def test_an_error_of_the_policy_reaches_who_listens():
    """It is raised after the pieces that were said."""

    class Broken(Typist):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        run(_pieces(speaking(Broken("x"))))  # type: ignore[arg-type]


def test_only_what_no_token_can_change_is_settled():
    """Unfinished characters, white space at the end, and thinking wait."""
    assert stable_prefix(" a b \ufffd", reasoning=False) == "a b"
    assert stable_prefix("a </th", reasoning=True) == ""
    assert stable_prefix("a </think> b", reasoning=True) == "b"
