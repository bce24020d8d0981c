"""What a small network sees of a reply: hashed words, pairs of words, where each word was heard, what was done before.

    user   how do I reset it?         last message     l:user:reset  l:user:reset it  l:user~rese  …
    agent  reset it in the menu       reply            r:reset  r:reset it  r~rese  …
                                      both             x:reset:menu  …
                                      heard where      h:last:reset  h:nowhere:menu  c:last:how  …
                                      acts             s:user>say  did:user>say  …

Words are hashed into buckets (Weinberger et al. 2009, arXiv 0902.2206), so there is no vocabulary to keep. Order beyond
two words is lost, and so is what a word means: "never do it" differs from "do it" by its pairs only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from grpo.messages import Message

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+|[^\sa-z\d]")
_MOST_WORDS = 256
"""Words of one message that count: what comes later costs time and tells little."""
_MOST_CROSSED = 24
_MIN_CROSSED_LETTERS = 3
_ACTS = 2
"""Messages before the reply whose kind counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptedReply:
    """A reply of the agent, and what came before it."""

    context: tuple[Message, ...]
    reply: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Bags:
    """The features of some exchanges, one after the other; values of one family have length 1 together."""

    buckets: NDArray[np.int64]  # [features]
    values: NDArray[np.float32]  # [features]
    starts: NDArray[np.int64]  # [exchanges + 1] features of exchange i: [starts[i], starts[i + 1])

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def rows(self) -> NDArray[np.int64]:
        """Which exchange each feature belongs to [features]."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def take(self, rows: NDArray[np.int64]) -> Bags:
        """Some of the exchanges, in the order of `rows`."""
        counts = np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(counts)])
        places = np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], counts)
        return Bags(buckets=self.buckets[places], values=self.values[places], starts=starts)

    def joined(self, other: Bags) -> Bags:
        """These exchanges, then those."""
        return Bags(
            buckets=np.concatenate([self.buckets, other.buckets]),
            values=np.concatenate([self.values, other.values]),
            starts=np.concatenate([self.starts, other.starts[1:] + self.starts[-1]]),
        )


def prompted_replies(turns: Sequence[Message]) -> list[PromptedReply]:
    """Every reply of the agent in a conversation, with what came before it."""
    return [
        PromptedReply(context=tuple(turns[:place]), reply=turn)
        for place, turn in enumerate(turns)
        if turn.role == "assistant"
    ]


def bags(asked: Sequence[PromptedReply], *, buckets: int) -> Bags:
    """Hash the features of each exchange into `buckets`."""
    places: list[int] = []
    values: list[float] = []
    starts = [0]
    for exchange in asked:
        for family in _families(exchange):
            if family:
                share = len(family) ** -0.5
                places.extend(crc32(name.encode()) % buckets for name in family)
                values.extend([share] * len(family))
        starts.append(len(places))
    return Bags(
        buckets=np.array(places, dtype=np.int64),
        values=np.array(values, dtype=np.float32),
        starts=np.array(starts, dtype=np.int64),
    )


def _families(exchange: PromptedReply) -> Iterator[list[str]]:
    """Names of the features that are there, by family."""
    context, reply = exchange.context, exchange.reply
    said = _words(reply)
    last = context[-1] if context else None
    heard = _words(last) if last else []
    role = last.role if last else "nobody"
    for name, words in (("r", said), (f"l:{role}", heard)):
        yield sorted({f"{name}:{word}" for word in words})
        yield sorted({f"{name}:{one} {two}" for one, two in zip(["^", *words], [*words, "$"], strict=True)})
        yield sorted({f"{name}~{part}" for word in set(words) for part in _parts(word)})
    yield _crossed(heard, said)
    asked = next((message for message in reversed(context) if message.role == "user"), None)
    if asked is not None and asked is not last:
        yield _crossed(_words(asked), said)
    places = _heard_where(context)
    yield [f"c:{place}:{word}" for word, place in sorted(places.items())]
    found = [places.get(word, "nowhere") for word in said]
    yield sorted({f"h:{place}:{word}" for place, word in zip(found, said, strict=True)})
    act = _act(reply)
    shares = {place: found.count(place) / len(found) for place in sorted(set(found))}
    yield [f"share:{place}:{round(8 * share)}" for place, share in shares.items()]
    yield [f"share:{act}:{place}:{round(4 * share)}" for place, share in shares.items()]
    yield _acts(context, reply, places)
    done = sorted({_act(message) for message in context})
    yield [f"did:{one}" for one in done] + [f"did:{one}>{act}" for one in done]
    yield _arguments(context, reply, places)
    length = len(said).bit_length()
    yield [f"length:{length}", f"length:{act}:{length}", f"turns:{min(24, len(context)) // 2}"]


def _parts(word: str) -> Iterator[str]:
    """Pieces of 3 to 5 letters of a word, its ends marked."""
    marked = f" {word} "
    for size in (3, 4, 5):
        for start in range(len(marked) - size + 1):
            yield marked[start : start + size]


def _crossed(heard: Sequence[str], said: Sequence[str]) -> list[str]:
    """Each longer word of the last message with each of the reply."""
    ours, theirs = (
        [word for word in dict.fromkeys(words) if len(word) >= _MIN_CROSSED_LETTERS][:_MOST_CROSSED]
        for words in (heard, said)
    )
    return [f"x:{one}:{two}" for one in ours for two in theirs]


def _heard_where(context: Sequence[Message]) -> dict[str, str]:
    """Who said each word last, "last" for the last message."""
    places: dict[str, str] = {}
    for place, message in enumerate(context):
        name = "last" if place == len(context) - 1 else message.role
        places.update(dict.fromkeys(_words(message), name))
    return places


def _acts(context: Sequence[Message], reply: Message, places: dict[str, str]) -> list[str]:
    """What kind of thing was done, after what, how often before, and where the arguments of calls come from."""
    acts = [_act(message) for message in context]
    act = _act(reply)
    names = [f"s:{act}"]
    names += [f"s:{'>'.join(acts[-count:])}>{act}" for count in range(1, _ACTS + 1) if len(acts) >= count]
    names.append(f"again:{act}:{min(3, acts.count(act))}")
    names += ["same"] * any(_words(message) == _words(reply) for message in context if message.role == "assistant")
    return names


def _arguments(context: Sequence[Message], reply: Message, places: dict[str, str]) -> list[str]:
    """Of the arguments of calls: where their words were heard, who said them as they stand, and their values."""
    names = []
    for call in reply.tool_calls:
        for key, value in call.arguments.items():
            text = str(value)
            found = {places.get(word, "nowhere") for word in _WORD.findall(text.lower())}
            names += [f"a:{call.name}.{key}:{place}" for place in sorted(found)]
            whole = {message.role for message in context if text in message.content}
            names += [f"whole:{call.name}.{key}:{role}" for role in sorted(whole)] or [
                f"whole:{call.name}.{key}:nobody"
            ]
            names += [f"v:{key}={text[:40]}"]
    return names


def _act(message: Message) -> str:
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
