"""What a simulated user wants, and what it says only when it is asked.

I want to send my lamp back.        what the user opens with
- order number: 4711                a hidden fact, by name and value
Known: You are Ann in 19122.        a hidden fact that any question brings out
Unknown: …, Persona: …, Instructions: …    never said aloud
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_FACT = re.compile(r"-\s*(?P<name>[^:]+):\s*(?P<value>.+)")
_PART = re.compile(r"(?P<part>Persona|Reason|Known|Unknown|Instructions):\s*(?P<text>.+)")
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]?")
_ASKS = re.compile(
    r"\?$|\b(?:please|could you|can you) (?:give|tell|provide|share|send|confirm|state)\b|\b(?:give|tell) me\b|"
    r"\b(?:may|can|could) i have\b|\bi (?:will |also )?need (?:your|the|to know)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
KNOWN = "known"
"""Name of the fact that any question brings out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A goal as text says it."""

    opening: str
    facts: Mapping[str, str] = field(default_factory=dict)
    """Hidden facts, value by name."""

    def asked(self, reply: str) -> list[str]:
        """Names of the facts that a reply asks for: all words of the name stand in one asking sentence."""
        asking = [set(_WORD.findall(sentence.casefold())) for sentence in questions(reply)]
        return [
            name
            for name in self.facts
            if any(name == KNOWN or set(_WORD.findall(name.casefold())) <= words for words in asking)
        ]


def questions(reply: str) -> list[str]:
    """The sentences of a reply that ask for something."""
    return [sentence for sentence in map(str.strip, _SENTENCE.findall(reply)) if _ASKS.search(sentence)]


def read_goal(text: str) -> Goal:
    """Read a goal, see the module."""
    opening, facts, reason = [], {}, []
    for line in filter(None, map(str.strip, text.splitlines())):
        fact, part = _FACT.fullmatch(line), _PART.fullmatch(line)
        if fact:
            facts[fact["name"].strip()] = fact["value"].strip()
        elif part is None:
            opening.append(line)
        elif part["part"] == "Reason":
            reason.append(part["text"])
        elif part["part"] == "Known":
            facts[KNOWN] = part["text"]
    return Goal(opening=" ".join(reason or opening), facts=facts)
