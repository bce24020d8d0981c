"""Context compression. It always keeps the system prompt and the last turn, from the user's last message on.

messages         S  U1 A1  U2 A2  U3
truncate         S     A1  U2 A2  U3      drops the oldest messages one by one
sliding_window   S         U2 A2  U3      drops whole exchanges: the rest begins with a user message
summary          S' U3                    appends a summary of the dropped messages to the system prompt
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Literal

from grpo.agents.extractive_summary import summarize
from grpo.messages import Message

_MAX_SUMMARY_WORDS = 200


def window(messages: Sequence[Message], size: int) -> tuple[list[Message], tuple[int, ...]]:
    """Keep the system prompt and the last `size` other messages. Also returns the indices of the dropped ones."""
    first = _after_system(messages)
    start = max(first, len(messages) - size)
    return [*messages[:first], *messages[start:]], tuple(range(first, start))


def compress(
    messages: Sequence[Message],
    *,
    max_tokens: int,
    strategy: Literal["truncate", "sliding_window", "summary"],
    count_tokens: Callable[[Sequence[Message]], int],
) -> tuple[list[Message], tuple[int, ...]]:
    """Shorten a conversation to `max_tokens`. Also returns the indices of the dropped messages.

    System prompt and last turn are kept even if they are longer than `max_tokens`.
    """
    first, last = _after_system(messages), _last_turn(messages)
    starts = [i for i in range(first, last) if strategy == "truncate" or messages[i].role == "user"] + [last]

    def fits(start: int) -> bool:
        return count_tokens([*messages[:first], *messages[start:]]) <= max_tokens

    start = starts[bisect_left(starts[:-1], True, key=fits)]  # fewer messages have fewer tokens
    kept = [*messages[:first], *messages[start:]]
    if strategy == "summary":
        kept = _with_summary(
            messages[first:start], messages[:first], messages[start:], max_tokens=max_tokens, count_tokens=count_tokens
        )
    return kept, tuple(range(first, start))


def _with_summary(
    dropped: Sequence[Message],
    system: Sequence[Message],
    rest: Sequence[Message],
    *,
    max_tokens: int,
    count_tokens: Callable[[Sequence[Message]], int],
) -> list[Message]:
    """Append the longest summary that fits to the system prompt. If none fits, append nothing."""
    texts = [message.content for message in dropped if message.role in ("user", "assistant")]
    longest = min(_MAX_SUMMARY_WORDS, sum(len(text.split()) for text in texts))
    for length in range(longest, 0, -max(1, longest // 8)):
        summary = summarize(texts, max_words=length)
        before = f"{system[0].content}\n\n" if system else ""
        prompt = Message(role="system", content=f"{before}Earlier in this conversation: {summary}")
        if summary and count_tokens([prompt, *rest]) <= max_tokens:
            return [prompt, *rest]
    return [*system, *rest]


def _after_system(messages: Sequence[Message]) -> int:
    return 1 if messages and messages[0].role == "system" else 0


def _last_turn(messages: Sequence[Message]) -> int:
    """Index of the last user message, or of the last message if there is no user message."""
    users = [i for i, message in enumerate(messages) if message.role == "user"]
    return users[-1] if users else len(messages) - 1
