from __future__ import annotations

import pytest

from grpo.agents.reasoning import stable_prefix
from grpo.messages import Message, split_reasoning
from tests.grpo.agents.fixtures import run, stub


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
    """Closed, opened by the template, unfinished, empty, and missing."""
    assert split_reasoning(text) == (reasoning, answer)


def test_a_reply_excludes_its_reasoning_and_records_it():
    """The text is y, the reasoning x."""
    agent = stub("<think>x</think>y", enable_reasoning=True)

    async def respond() -> tuple[str, str | None, bool]:
        async with agent.open_transcript() as transcript:
            reply = await agent.respond(transcript, [Message(role="user", content="?")])
        return reply.text, reply.reasoning, reply.as_sampled

    assert run(respond()) == ("y", "x", True)


def test_reasoning_tags_are_text_when_reasoning_is_disabled():
    """The reply is the whole generation."""
    assert run(stub("<think>x</think>y").generate_response("?")) == "<think>x</think>y"


def test_the_stable_prefix_excludes_what_further_tokens_may_change():
    """Incomplete characters, trailing white space and reasoning are held back."""
    assert stable_prefix(" a b \ufffd", reasoning=False) == "a b"
    assert stable_prefix("a </th", reasoning=True) == ""
    assert stable_prefix("a </think> b", reasoning=True) == "b"
