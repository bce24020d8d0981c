"""Personal data out of a scenario: typed placeholders, and pseudonyms where its world needs the value.

    says   Mail anna@example.org about 4711, I am Anna Bell.   →   Mail person1@example.com about 4711, I am Kim [name].
    world  {"anna@example.org": {"first_name": "Anna"}}        →   {"person1@example.com": {"first_name": "Kim"}}

A value that stands in the world or among the expected calls gets the same pseudonym wherever it stands, so that what
the user says still fits the records; any other value becomes its kind in brackets. Order numbers and identifiers are
no personal data and stay. A pseudonym follows from the scenario's id: two scenarios cannot be linked by it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from grpo.retraining.personal_keys import pii_fields
from grpo.retraining.pii import PIIKind, find_pii
from grpo.scenarios.scenario import Scenario

_FIRST = ("Alex", "Robin", "Kim", "Jamie", "Noa", "Sascha", "Charlie", "Rene", "Toni", "Jo")
_NUMBERS: tuple[PIIKind, ...] = ("phone", "card", "national id", "iban")
"""Kinds that are the same however they are spaced: `030 901820` and `030901820`."""
_BETWEEN = r"[\W_]{0,4}"


class Redacted:
    """A scenario without personal data; `found` counts its different values by kind.

    Raises `ValidationError` where what is left is no scenario: placeholders may be longer than what they replace.
    """

    def __init__(self, scenario: Scenario) -> None:
        expected = scenario.expected
        self._texts = (*scenario.user_responses, scenario.goal, scenario.context, *expected.responses, *expected.facts)
        self._records = (scenario.world, expected.calls, expected.state)
        self._id = scenario.id
        self._kinds = kinds = self._find()
        needed = [text for record in self._records for text in _strings(record)]
        self._patterns = {value: _pattern(value, kind) for value, kind in kinds.items()}
        self._substitutes: dict[str, str] = {}
        for number, (value, kind) in enumerate(kinds.items(), start=1):
            inside = any(_within(self._patterns[value], value, text) for text in needed)
            self._substitutes[value] = self._pseudonym(value, kind, number) if inside else f"[{kind}]"
        self.found = Counter(kinds.values())
        self.scenario = self._apply(scenario) if kinds else scenario

    def _find(self) -> dict[str, PIIKind]:
        """Each value and its kind, in the form in which it is compared; names are taken word by word."""
        arguments = [call.get("arguments") for call in self._records[1]]  # a call's own name is that of its tool
        found: list[tuple[PIIKind, str]] = []
        for text in (*self._texts, *(text for record in self._records for text in _strings(record))):
            found += [(one.kind, text[one.start : one.stop]) for one in find_pii(text)]
        for record in (self._records[0], arguments, self._records[2]):
            found += pii_fields(record)
        kinds: dict[str, PIIKind] = {}
        for kind, text in found:
            for part in text.split() if kind == "name" else (text,):
                if kind in _NUMBERS or len(part) > 1:
                    kinds.setdefault(_compact(part) if kind in _NUMBERS else _fold(part), kind)
        return kinds

    def _pseudonym(self, value: str, kind: PIIKind, number: int) -> str:
        seed = hashlib.sha256(f"{self._id}\0{value}".encode()).digest()
        if kind == "email":
            return f"person{number}@example.com"
        if kind == "name":
            return _FIRST[seed[0] % len(_FIRST)]
        if kind == "ip":
            return f"192.0.2.{1 + seed[0] % 254}"  # kept for documentation by RFC 5737
        if kind == "address":
            return f"{number} Sample Street"
        digits = iter(seed)
        return "".join(str(1 + next(digits) % 9) if letter.isdigit() else letter for letter in value)

    def _apply(self, scenario: Scenario) -> Scenario:
        longest = sorted(self._substitutes, key=len, reverse=True)
        pattern = re.compile("|".join(self._patterns[value].pattern for value in longest), re.IGNORECASE)

        def text(value: str) -> str:
            return pattern.sub(lambda match: self._substitute(match[0]), value)

        def record(value: Any) -> Any:
            if isinstance(value, str):
                return text(value)
            if isinstance(value, dict):
                return {text(name): record(item) for name, item in value.items()}
            if isinstance(value, (list, tuple)):
                return [record(item) for item in value]
            if isinstance(value, int) and str(value) in self._substitutes:
                return int(text(str(value)))
            return value

        fields = scenario.model_dump()
        expected = fields["expected"]
        return Scenario.model_validate(
            {
                **fields,
                "user_responses": list(map(text, scenario.user_responses)),
                "goal": text(scenario.goal),
                "context": text(scenario.context),
                "world": record(scenario.world),
                "expected": {
                    "responses": list(map(text, scenario.expected.responses)),
                    "facts": list(map(text, scenario.expected.facts)),
                    "calls": record(expected["calls"]),
                    "state": record(expected["state"]),
                },
            }
        )

    def _substitute(self, found: str) -> str:
        """What stands in the place of these words; a number keeps the spaces that it was given."""
        value = _fold(found)
        if value not in self._substitutes:
            value = _compact(found)
        text = self._substitutes.get(value, "[personal]")
        if self._kinds.get(value) not in _NUMBERS or text.startswith("["):
            return text
        given = iter(text)
        pairs = ((letter, next(given) if letter.isalnum() else letter) for letter in found)
        return "".join(new if letter.isdigit() else letter for letter, new in pairs)


def _strings(value: Any) -> Iterator[str]:
    """Every text in a record: keys, values, and whole numbers, which a user would say digit by digit."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield str(name)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _fold(text: str) -> str:
    """Small letters, one for each: `İ` becomes `i`, where `str.lower` would make two characters of it."""
    return "".join(letter.lower()[0] for letter in text)


def _compact(text: str) -> str:
    """Letters and digits alone: numbers are compared without what stands between."""
    return "".join(letter for letter in _fold(text) if letter.isalnum())


def _pattern(value: str, kind: PIIKind) -> re.Pattern[str]:
    if kind in _NUMBERS:
        return re.compile(rf"(?<!\w)[+(]{{0,2}}{_BETWEEN.join(map(re.escape, value))}(?!\w)", re.IGNORECASE)
    return re.compile(rf"(?<!\w){re.escape(value)}(?!\w)", re.IGNORECASE)


def _within(pattern: re.Pattern[str], value: str, text: str) -> bool:
    return (value in _fold(text) or value in _compact(text)) and pattern.search(text) is not None
