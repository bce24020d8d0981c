"""Less of a conversation than there was, for a policy that cannot read all of it. The system prompt and the last turn,
from the user's last message on, always stay.

    messages         S  U1 A1  U2 A2  U3
    truncate         S     A1  U2 A2  U3      the oldest messages go, one by one
    sliding_window   S         U2 A2  U3      the oldest exchanges go, so that what is left begins with a user
    summary          S' U3                    and a summary of those that went stands in the system prompt
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from grpo.agents.extractive_summary import summarize
from grpo.messages import Message

_LONGEST_SUMMARY = 200
"""Words."""


def window(messages: Sequence[Message], size: int) -> tuple[list[Message], tuple[int, ...]]:
    """The system prompt and the last `size` other messages; and the places of those that are left out."""
    first = _after_system(messages)
    start = max(first, len(messages) - size)
    return [*messages[:first], *messages[start:]], tuple(range(first, start))


def compress(
    messages: Sequence[Message],
    *,
    most: int,
    strategy: Literal["truncate", "sliding_window", "summary"],
    count: Callable[[Sequence[Message]], int],
) -> tuple[list[Message], tuple[int, ...]]:
    """At most `most` tokens of a conversation where that can be had, and the places of the messages left out.

    `count` says how many tokens a conversation has. Where system prompt and last turn alone are longer, they remain.
    """
    first, last = _after_system(messages), _last_turn(messages)
    starts = [place for place in range(first, last) if strategy == "truncate" or messages[place].role == "user"] + [
        last
    ]
    for start in starts:
        kept = [*messages[:first], *messages[start:]]
        if start == starts[-1] or count(kept) <= most:
            break
    if strategy == "summary":
        kept = _with_summary(messages[first:start], messages[:first], messages[start:], most=most, count=count)
    return kept, tuple(range(first, start))


def _with_summary(
    gone: Sequence[Message],
    system: Sequence[Message],
    rest: Sequence[Message],
    *,
    most: int,
    count: Callable[[Sequence[Message]], int],
) -> list[Message]:
    """The longest summary that fits stands at the end of the system prompt; none where none fits."""
    texts = [message.content for message in gone if message.role in ("user", "assistant")]
    longest = min(_LONGEST_SUMMARY, sum(len(text.split()) for text in texts))
    for length in range(longest, 0, -max(1, longest // 8)):
        summary = summarize(texts, max_words=length)
        before = f"{system[0].content}\n\n" if system else ""
        head = Message(role="system", content=f"{before}Earlier in this conversation: {summary}")
        if summary and count([head, *rest]) <= most:
            return [head, *rest]
    return [*system, *rest]


def _after_system(messages: Sequence[Message]) -> int:
    return 1 if messages and messages[0].role == "system" else 0


def _last_turn(messages: Sequence[Message]) -> int:
    """Place of the user's last message; of the last message where no user spoke."""
    users = [place for place, message in enumerate(messages) if message.role == "user"]
    return users[-1] if users else len(messages) - 1
