from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from grpo.agents.compression import compress, window
from grpo.agents.extractive_summary import summarize
from grpo.errors import PolicyError
from grpo.messages import Message
from tests.grpo.agents.parts import Echo, run, speaking

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
    kept, dropped = compress(CHAT, most=50, strategy="truncate", count=_letters)
    assert _names(kept) == "Be a1 u2 a2 la"
    assert dropped == (1, 2, 3)


def test_a_sliding_window_drops_whole_exchanges():
    """The reply a1 does not stay without its question."""
    kept, dropped = compress(CHAT, most=50, strategy="sliding_window", count=_letters)
    assert _names(kept) == "Be u2 a2 la"
    assert dropped == (1, 2, 3, 4)


def test_a_summary_of_what_is_dropped_stands_in_the_system_prompt():
    """It is made of sentences that were said, and fits."""
    chat = [
        CHAT[0],
        Message(role="user", content="My lamp, order 17, is broken. Good evening."),
        Message(role="assistant", content="I see that the lamp of order 17 is broken. " * 3),
        Message(role="user", content="last turn."),
    ]
    kept, dropped = compress(chat, most=110, strategy="summary", count=_letters)
    assert dropped == (1, 2)
    assert [message.role for message in kept] == ["system", "user"]
    assert kept[0].content.startswith("Be brief..\n\nEarlier in this conversation: ")
    assert "order 17" in kept[0].content
    assert _letters(kept) <= 110


def test_the_system_prompt_and_the_last_turn_stay_even_where_they_are_too_long():
    """Nothing else does, and a summary finds no room."""
    for strategy in ("truncate", "sliding_window", "summary"):
        kept, dropped = compress(CHAT, most=5, strategy=strategy, count=_letters)  # type: ignore[arg-type]
        assert _names(kept) == "Be la"
        assert dropped == (1, 2, 3, 4, 5, 6)


def test_the_last_turn_holds_what_followed_the_users_last_message():
    """A call and its result stay with the question."""
    chat = [*CHAT, Message(role="assistant", content="call......"), Message(role="tool", content="result....")]
    kept, _ = compress(chat, most=40, strategy="truncate", count=_letters)
    assert _names(kept) == "Be la ca re"


def test_a_window_counts_what_is_not_the_system_prompt():
    """Two of seven; all where it is wide enough."""
    assert (_names(window(CHAT, 2)[0]), window(CHAT, 2)[1]) == ("Be a2 la", (1, 2, 3, 4, 5))
    assert window(CHAT, 9) == (CHAT, ())
    assert _names(window(CHAT[1:], 1)[0]) == "la"


@pytest.mark.parametrize("strategy", ["truncate", "sliding_window", "summary"])
def test_a_conversation_above_max_context_is_compressed(strategy: str, caplog: pytest.LogCaptureFixture):
    """At most half of the tokens reach the policy, system prompt and last turn among them; what went is logged."""
    agent = speaking(
        Echo(),
        system_prompt="Be brief.",
        max_context=700,
        max_new_tokens=100,
        enable_context_compression=True,
        compression_strategy=strategy,
    )
    said = [m.to_template() for m in CHAT[1:-1]] * 10
    chat = [*said, {"role": "user", "content": "last turn."}]
    with caplog.at_level(logging.INFO, "grpo.agents"):
        run(agent.generate_response(chat))
    (heard,) = agent.policy.heard  # type: ignore[union-attr]
    count = agent.renderer.build_prompt  # type: ignore[union-attr]
    system = Message(role="system", content="Be brief.")
    before = [system, *(Message(role=m["role"], content=m["content"]) for m in chat)]
    assert len(count(heard)) <= len(count(before)) / 2
    assert heard[0].content.startswith("Be brief.")
    assert heard[-1].content == "last turn."
    gone = [str(place) for place in range(len(chat) - len(heard) + 1)]
    assert f"messages that the policy does not see: {', '.join(gone)}" in caplog.messages


def test_a_conversation_that_fits_is_left_alone():
    """Compression is for what cannot be read."""
    agent = speaking(Echo(), max_context=700, max_new_tokens=100, enable_context_compression=True)
    run(agent.generate_response([m.to_template() for m in CHAT]))
    assert agent.policy.heard == [tuple(CHAT)]  # type: ignore[union-attr]


def test_without_compression_what_cannot_be_read_is_refused():
    """With the numbers, and the setting that helps."""
    agent = speaking(Echo(), max_context=60, max_new_tokens=40)
    with pytest.raises(PolicyError, match=r"reply may have 40, together more than 60; .*enable_context_compression"):
        run(agent.generate_response([m.to_template() for m in CHAT]))


def test_a_summary_takes_the_sentences_whose_words_are_used_most():
    """lamp and broken are said twice: (2 + 2) / 2 = 2 against (2 + 1 + 1) / 3 and 1."""
    texts = ["My lamp is broken.", "Good evening.", "The broken lamp came yesterday from Ulm."]
    assert summarize(texts, max_words=4) == "My lamp is broken."
    assert summarize(texts, max_words=12) == "My lamp is broken. The broken lamp came yesterday from Ulm."
    assert summarize(texts, max_words=1) == ""
