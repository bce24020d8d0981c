"""Hashed features of a reply in its context: words, word pairs, word pieces, sources of words, earlier actions.

    user   how do I reset it?         last message     l:user:reset  l:user:reset it  l:user~rese  …
    agent  reset it in the menu       reply            r:reset  r:reset it  r~rese  …
                                      both             x:reset:menu  …
                                      sources          h:last:reset  h:nowhere:menu  c:last:how  …
                                      actions          s:user>say  did:user>say  …

Words are hashed into buckets (Weinberger et al. 2009, arXiv 0902.2206), without a vocabulary. Order beyond
two words is lost, and so is meaning: "never do it" differs from "do it" by its pairs only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from grpo.messages import Message

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+|[^\sa-z\d]")
_MOST_WORDS = 256
"""Words of one message that count: later ones cost time and add little."""
_MOST_CROSSED = 24
_MIN_CROSSED_LETTERS = 3
_NO_ROLE = "nobody"  # hashed: another name would need another network
_ACTIONS = 2
"""The actions of this many messages before the reply count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptedReply:
    """A reply of the agent, and the messages before it."""

    prompt: tuple[Message, ...]
    reply: Message


def prompted_replies(turns: Sequence[Message]) -> list[PromptedReply]:
    """Every reply of the agent in a conversation, with the messages before it."""
    return [
        PromptedReply(prompt=tuple(turns[:place]), reply=turn)
        for place, turn in enumerate(turns)
        if turn.role == "assistant"
    ]


def hash_features(replies: Sequence[PromptedReply], *, buckets: int) -> csr_matrix:
    """Features of each reply [replies, buckets], sparse. The values of one family have length 1 together."""
    from scipy.sparse import csr_matrix  # takes a fifth of a second to import

    columns: list[int] = []
    values: list[float] = []
    starts = [0]
    for reply in replies:
        for family in _families(reply):
            if family:
                columns.extend(crc32(name.encode()) % buckets for name in family)
                values.extend([len(family) ** -0.5] * len(family))
        starts.append(len(columns))
    return csr_matrix((np.array(values, dtype=np.float32), columns, starts), shape=(len(replies), buckets))


def _families(prompted: PromptedReply) -> Iterator[list[str]]:
    """Names of the features present, by family."""
    prompt, reply = prompted.prompt, _words(prompted.reply)
    last = prompt[-1] if prompt else None
    before = _words(last) if last else []
    role = last.role if last else _NO_ROLE
    for name, words in (("r", reply), (f"l:{role}", before)):
        yield sorted({f"{name}:{word}" for word in words})
        yield sorted({f"{name}:{first} {second}" for first, second in zip(["^", *words], [*words, "$"], strict=True)})
        yield sorted({f"{name}~{piece}" for word in set(words) for piece in _pieces(word)})
    yield _crossed(before, reply)
    request = next((message for message in reversed(prompt) if message.role == "user"), None)
    if request is not None and request is not last:
        yield _crossed(_words(request), reply)
    sources = _sources(prompt)
    yield [f"c:{source}:{word}" for word, source in sorted(sources.items())]
    used = [sources.get(word, "nowhere") for word in reply]
    yield sorted({f"h:{source}:{word}" for source, word in zip(used, reply, strict=True)})
    action = _action(prompted.reply)
    shares = {source: used.count(source) / len(used) for source in sorted(set(used))}
    yield [f"share:{source}:{round(8 * share)}" for source, share in shares.items()]
    yield [f"share:{action}:{source}:{round(4 * share)}" for source, share in shares.items()]
    yield _actions(prompt, prompted.reply)
    done = sorted({_action(message) for message in prompt})
    yield [f"did:{earlier}" for earlier in done] + [f"did:{earlier}>{action}" for earlier in done]
    yield _arguments(prompt, prompted.reply, sources)
    length = len(reply).bit_length()
    yield [f"length:{length}", f"length:{action}:{length}", f"turns:{min(24, len(prompt)) // 2}"]


def _pieces(word: str) -> Iterator[str]:
    """Pieces of 3 to 5 letters of a word, its ends marked."""
    marked = f" {word} "
    for size in (3, 4, 5):
        for start in range(len(marked) - size + 1):
            yield marked[start : start + size]


def _crossed(before: Sequence[str], reply: Sequence[str]) -> list[str]:
    """Each longer word of a message with each of the reply."""
    left, right = (
        [word for word in dict.fromkeys(words) if len(word) >= _MIN_CROSSED_LETTERS][:_MOST_CROSSED]
        for words in (before, reply)
    )
    return [f"x:{first}:{second}" for first in left for second in right]


def _sources(prompt: Sequence[Message]) -> dict[str, str]:
    """Role that used each word last, or "last" if the last message used it."""
    sources: dict[str, str] = {}
    for place, message in enumerate(prompt):
        source = "last" if place == len(prompt) - 1 else message.role
        sources.update(dict.fromkeys(_words(message), source))
    return sources


def _actions(prompt: Sequence[Message], reply: Message) -> list[str]:
    """The reply's action, the actions before it, and how often it was taken already."""
    earlier = [_action(message) for message in prompt]
    action = _action(reply)
    names = [f"s:{action}"]
    names += [f"s:{'>'.join(earlier[-count:])}>{action}" for count in range(1, _ACTIONS + 1) if len(earlier) >= count]
    names.append(f"again:{action}:{min(3, earlier.count(action))}")
    names += ["same"] * any(_words(message) == _words(reply) for message in prompt if message.role == "assistant")
    return names


def _arguments(prompt: Sequence[Message], reply: Message, sources: dict[str, str]) -> list[str]:
    """Arguments of tool calls: the sources of their words, the roles that wrote them in full, and their values."""
    names = []
    for call in reply.tool_calls:
        for key, value in call.arguments.items():
            text = str(value)
            used = {sources.get(word, "nowhere") for word in _WORD.findall(text.lower())}
            names += [f"a:{call.name}.{key}:{source}" for source in sorted(used)]
            roles = sorted({str(message.role) for message in prompt if text in message.content}) or [_NO_ROLE]
            names += [f"whole:{call.name}.{key}:{role}" for role in roles]
            names += [f"v:{key}={text[:40]}"]
    return names


def _action(message: Message) -> str:
    if message.tool_calls:
        return "+".join(call.name for call in message.tool_calls)
    if message.role == "assistant":
        return "ask" if message.content.rstrip().endswith("?") else "say"
    return message.role


def _words(message: Message) -> list[str]:
    text = message.content
    for call in message.tool_calls:
        text += f" {call}"
    return _WORD.findall(text.lower())[:_MOST_WORDS]
