"""A summary made of sentences of the text itself (Luhn, 1958): those whose words the text uses most."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
_WORD = re.compile(r"\w+")
_COMMON = frozenset(
    _WORD.findall(
        "the and but for nor yet not you your yours are was were been has have had can could will would shall should "
        "may might must that this these those there here what which who whom whose when where why how with from into "
        "onto about they them their she her him his its our ours out all any some just does did done than then too "
        "very please thank thanks hello"
    )
)


def content_words(text: str) -> list[str]:
    """Words that carry meaning, in small letters: three letters and more, and none of the commonest."""
    return [word for word in _WORD.findall(text.casefold()) if len(word) > 2 and word not in _COMMON]


def summarize(texts: Sequence[str], *, max_words: int) -> str:
    """Sentences of these texts with at most so many words together, in their order; '' where none is short enough.

    A sentence counts the mean number of times that its words are used in all the texts; of two alike the later goes.

    texts  My lamp is broken.   I am sorry.   The lamp, order 17, fell.      lamp is used twice
    5 words  →  My lamp is broken.
    """
    sentences = list(dict.fromkeys(s.strip() for text in texts for s in _SENTENCE.findall(text) if s.strip()))
    used = Counter(word for text in texts for word in content_words(text))
    weight = {s: sum(used[word] for word in content_words(s)) / max(len(content_words(s)), 1) for s in sentences}
    chosen: set[str] = set()
    left = max_words
    for sentence in sorted(sentences, key=lambda s: -weight[s]):
        length = len(sentence.split())
        if weight[sentence] and length <= left:
            chosen.add(sentence)
            left -= length
    return " ".join(sentence for sentence in sentences if sentence in chosen)
