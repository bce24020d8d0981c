from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence

import pytest

from grpo.agents.compression import compress, window
from grpo.agents.extractive_summary import summarize
from grpo.errors import PolicyError
from grpo.messages import Message
from tests.grpo.agents.fixtures import Echo, make_agent, run

# S, then three exchanges of 10 + 10 letters, and the last turn of 10
CHAT = [
    Message(role="system", content="Be brief.."),
    *(Message(role=role, content=f"{role[0]}{k}" + ".a lamp."[:8]) for k in range(3) for role in ("user", "assistant")),
    Message(role="user", content="last turn."),
]


def _letters(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)


def _names(messages: Sequence[Message]) -> str:
    return " ".join(message.content[:2] for message in messages)


def test_truncation_drops_the_oldest_messages_one_by_one():
    """80 letters, at most 50: S and the last turn leave room for three messages."""
    kept, dropped = compress(CHAT, max_tokens=50, strategy="truncate", count_tokens=_letters)
    assert _names(kept) == "Be a1 u2 a2 la"
    assert dropped == (1, 2, 3)


def test_a_sliding_window_drops_whole_exchanges():
    """The reply a1 is not kept without its question."""
    kept, dropped = compress(CHAT, max_tokens=50, strategy="sliding_window", count_tokens=_letters)
    assert _names(kept) == "Be u2 a2 la"
    assert dropped == (1, 2, 3, 4)


def test_a_summary_of_the_dropped_messages_is_in_the_system_prompt():
    """It consists of their sentences and fits."""
    chat = [
        CHAT[0],
        Message(role="user", content="My lamp, order 17, is broken. Good evening."),
        Message(role="assistant", content="I see that the lamp of order 17 is broken. " * 3),
        Message(role="user", content="last turn."),
    ]
    kept, dropped = compress(chat, max_tokens=110, strategy="summary", count_tokens=_letters)
    assert dropped == (1, 2)
    assert [message.role for message in kept] == ["system", "user"]
    assert kept[0].content.startswith("Be brief..\n\nEarlier in this conversation: ")
    assert "order 17" in kept[0].content
    assert _letters(kept) <= 110


def test_the_system_prompt_and_the_last_turn_are_kept_even_if_too_long():
    """Nothing else is kept, and a summary does not fit."""
    for strategy in ("truncate", "sliding_window", "summary"):
        kept, dropped = compress(CHAT, max_tokens=5, strategy=strategy, count_tokens=_letters)  # type: ignore[arg-type]
        assert _names(kept) == "Be la"
        assert dropped == (1, 2, 3, 4, 5, 6)


def test_the_last_turn_begins_at_the_last_user_message():
    """A call and its result are kept with the question."""
    chat = [*CHAT, Message(role="assistant", content="call......"), Message(role="tool", content="result....")]
    kept, _ = compress(chat, max_tokens=40, strategy="truncate", count_tokens=_letters)
    assert _names(kept) == "Be la ca re"


def test_a_window_does_not_count_the_system_prompt():
    """Two of seven; all of them if the window is wide enough."""
    assert (_names(window(CHAT, 2)[0]), window(CHAT, 2)[1]) == ("Be a2 la", (1, 2, 3, 4, 5))
    assert window(CHAT, 9) == (CHAT, ())
    assert _names(window(CHAT[1:], 1)[0]) == "la"


@pytest.mark.parametrize("strategy", ["truncate", "sliding_window", "summary"])
def test_a_conversation_above_max_context_is_compressed(strategy: str, caplog: pytest.LogCaptureFixture):
    """At most half of the tokens reach the policy, with system prompt and last turn; dropped messages are logged."""
    agent = make_agent(
        Echo(),
        system_prompt="Be brief.",
        max_context=700,
        max_new_tokens=100,
        enable_context_compression=True,
        compression_strategy=strategy,
    )
    earlier = [m.to_template() for m in CHAT[1:-1]] * 10
    chat = [*earlier, {"role": "user", "content": "last turn."}]
    with caplog.at_level(logging.INFO, "grpo.agents"):
        run(agent.generate_response(chat))
    (prompt,) = agent.policy.prompts  # type: ignore[union-attr]
    count = agent.renderer.build_prompt  # type: ignore[union-attr]
    system = Message(role="system", content="Be brief.")
    before = [system, *(Message(role=m["role"], content=m["content"]) for m in chat)]
    assert len(count(prompt)) <= len(count(before)) / 2
    assert prompt[0].content.startswith("Be brief.")
    assert prompt[-1].content == "last turn."
    dropped = [str(index) for index in range(len(chat) - len(prompt) + 1)]
    assert f"messages dropped from the prompt: {', '.join(dropped)}" in caplog.messages


def test_a_conversation_within_max_context_is_not_compressed():
    """The prompt is the whole conversation."""
    agent = make_agent(Echo(), max_context=700, max_new_tokens=100, enable_context_compression=True)
    run(agent.generate_response([m.to_template() for m in CHAT]))
    assert agent.policy.prompts == [tuple(CHAT)]  # type: ignore[union-attr]


def test_without_compression_a_conversation_above_max_context_is_refused():
    """With the numbers, and the setting that helps."""
    agent = make_agent(Echo(), max_context=60, max_new_tokens=40)
    with pytest.raises(PolicyError, match=r"reply may have 40, together more than 60\. .*enable_context_compression"):
        run(agent.generate_response([m.to_template() for m in CHAT]))


def test_a_summary_selects_the_sentences_with_the_most_frequent_words():
    """lamp and broken have frequency 2: (2 + 2) / 2 = 2 against (2 + 1 + 1) / 3 and 1."""
    texts = ["My lamp is broken.", "Good evening.", "The broken lamp came yesterday from Ulm."]
    assert summarize(texts, max_words=4) == "My lamp is broken."
    assert summarize(texts, max_words=12) == "My lamp is broken. The broken lamp came yesterday from Ulm."
    assert summarize(texts, max_words=1) == ""


@pytest.mark.parametrize("strategy", ["truncate", "summary"])
def test_a_server_compresses_on_another_thread(strategy: str):
    """Where the transcript has a place for such work, no text is tokenized on the event loop."""
    agent = make_agent(
        Echo(), max_context=700, max_new_tokens=100, enable_context_compression=True, compression_strategy=strategy
    )
    chat = [*CHAT[1:-1] * 10, Message(role="user", content="last turn.")]
    threads: list[int] = []

    async def respond() -> str:
        async with agent.open_transcript() as transcript:
            build = transcript.renderer.build_prompt

            def noted(messages: Sequence[Message]) -> list[int]:
                threads.append(threading.get_ident())
                return build(messages)

            transcript.renderer.build_prompt = noted  # type: ignore[method-assign]
            transcript.encode_elsewhere = lambda characters, work: asyncio.to_thread(work)
            return (await agent.respond(transcript, chat)).text

    assert run(respond())
    assert threads
    assert threading.get_ident() not in threads


def test_the_number_of_counts_grows_with_the_logarithm_of_the_messages():
    """Of 1,000 messages whose last 100 fit, the first that is kept is found in 10 counts."""
    messages = [Message(role="user", content=str(number)) for number in range(1000)]
    counts: list[int] = []

    def count(kept: Sequence[Message]) -> int:
        counts.append(len(kept))
        return len(kept)

    kept, dropped = compress(messages, max_tokens=100, strategy="truncate", count_tokens=count)
    assert (len(kept), len(dropped)) == (100, 900)
    assert len(counts) <= 10
