"""Extractive summaries: the sentences with the most frequent content words (Luhn, 1958)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
_WORD = re.compile(r"\w+")
_STOP_WORDS = frozenset(
    _WORD.findall(
        "the and but for nor yet not you your yours are was were been has have had can could will would shall should "
        "may might must that this these those there here what which who whom whose when where why how with from into "
        "onto about they them their she her him his its our ours out all any some just does did done than then too "
        "very please thank thanks hello"
    )
)


def content_words(text: str) -> list[str]:
    """Case-folded words of at least three letters, without stop words."""
    return [word for word in _WORD.findall(text.casefold()) if len(word) > 2 and word not in _STOP_WORDS]


def summarize(texts: Sequence[str], *, max_words: int) -> str:
    """Select sentences of up to `max_words` words in total, in their order, or '' if no sentence is short enough.

    The score of a sentence is the mean frequency of its content words over all texts. If two tie, the earlier one wins.

    texts  My lamp is broken.   I am sorry.   The lamp, order 17, fell.      lamp has frequency 2
    5 words  →  My lamp is broken.
    """
    sentences = list(dict.fromkeys(s.strip() for text in texts for s in _SENTENCE.findall(text) if s.strip()))
    frequency = Counter(word for text in texts for word in content_words(text))
    score = {s: sum(frequency[word] for word in content_words(s)) / max(len(content_words(s)), 1) for s in sentences}
    selected: set[str] = set()
    words_left = max_words
    for sentence in sorted(sentences, key=lambda s: -score[s]):
        length = len(sentence.split())
        if score[sentence] and length <= words_left:
            selected.add(sentence)
            words_left -= length
    return " ".join(sentence for sentence in sentences if sentence in selected)
