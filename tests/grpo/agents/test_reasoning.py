from __future__ import annotations

import pytest

from grpo.agents.reasoning import split_reasoning
from grpo.messages import Message
from tests.grpo.agents.parts import run, stub


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>x</think>y", "x", "y"),
        (" <think>\nx\n</think>\n\ny", "x", "y"),
        ("x</think>y", "x", "y"),
        ("<think>x", "x", ""),
        ("<think></think>y", "", "y"),
        ("y", None, "y"),
        ("a <b> c", None, "a <b> c"),
    ],
)
def test_reasoning_is_split_from_the_answer(text: str, reasoning: str | None, answer: str):
    """Closed, opened by the template, cut off, empty, and not there."""
    assert split_reasoning(text) == (reasoning, answer)


def test_an_agent_replies_without_its_reasoning_and_keeps_it_beside():
    """The reply is y; x stands in the reply's record."""
    agent = stub("<think>x</think>y", enable_reasoning=True)

    async def speak() -> tuple[str, str | None, bool]:
        async with agent.transcript() as transcript:
            reply = await agent.respond(transcript, [Message(role="user", content="?")])
        return reply.text, reply.reasoning, reply.as_sampled

    assert run(speak()) == ("y", "x", True)


def test_tags_are_words_where_reasoning_is_off():
    """The reply is what the model said."""
    assert run(stub("<think>x</think>y").generate_response("?")) == "<think>x</think>y"
