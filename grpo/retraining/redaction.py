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

from grpo.retraining.personal_data import Kind, find_personal
from grpo.scenarios.scenario import Scenario

_FIRST = ("Alex", "Robin", "Kim", "Jamie", "Noa", "Sascha", "Charlie", "Rene", "Toni", "Jo")
_NAME_KEYS = ("first_name", "last_name", "full_name", "customer_name")
"""Under these a world keeps a name, whatever it looks like."""


class Redacted:
    """A scenario without personal data; `found` counts its different values by kind."""

    def __init__(self, scenario: Scenario) -> None:
        expected = scenario.expected
        self._texts = (*scenario.user_responses, scenario.goal, scenario.context, *expected.responses, *expected.facts)
        self._records = (scenario.world, expected.calls, expected.state)
        self._id = scenario.id
        kinds = self._kinds()
        needed = {text.lower() for record in self._records for text in _strings(record)}
        self._substitutes: dict[str, str] = {}
        for number, (value, kind) in enumerate(kinds.items(), start=1):
            inside = any(_within(value, text) for text in needed)
            self._substitutes[value] = self._pseudonym(value, kind, number) if inside else f"[{kind}]"
        self.found = Counter(kinds.values())
        self.scenario = self._apply(scenario) if kinds else scenario

    def _kinds(self) -> dict[str, Kind]:
        """Each value, in small letters, and its kind; names are taken word by word."""
        kinds: dict[str, Kind] = {}
        for text in (*self._texts, *(text for record in self._records for text in _strings(record))):
            for one in find_personal(text):
                value = text[one.start : one.stop].lower()
                for part in value.split() if one.kind == "name" else (value,):
                    kinds.setdefault(part, one.kind)
        for record in self._records:
            for name in _named(record):
                for part in name.lower().split():
                    kinds.setdefault(part, "name")
        return kinds

    def _pseudonym(self, value: str, kind: Kind, number: int) -> str:
        seed = hashlib.sha256(f"{self._id}\0{value}".encode()).digest()
        if kind == "email":
            return f"person{number}@example.com"
        if kind == "name":
            return _FIRST[seed[0] % len(_FIRST)]
        if kind == "ip":
            return f"192.0.2.{1 + seed[0] % 254}"  # kept for documentation by RFC 5737
        digits = iter(seed)
        return "".join(str(1 + next(digits) % 9) if letter.isdigit() else letter for letter in value)

    def _apply(self, scenario: Scenario) -> Scenario:
        longest = sorted(self._substitutes, key=len, reverse=True)
        pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)", re.IGNORECASE)

        def text(value: str) -> str:
            return pattern.sub(lambda match: self._substitutes.get(match[0].lower(), "[personal]"), value)

        def record(value: Any) -> Any:
            if isinstance(value, str):
                return text(value)
            if isinstance(value, dict):
                return {text(name): record(item) for name, item in value.items()}
            if isinstance(value, (list, tuple)):
                return [record(item) for item in value]
            if isinstance(value, int) and str(value) in self._substitutes:
                return int(self._substitutes[str(value)])
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


def _named(value: Any) -> Iterator[str]:
    """What stands under the keys of names."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name in _NAME_KEYS and isinstance(item, str):
                yield item
            yield from _named(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _named(item)


def _within(value: str, text: str) -> bool:
    return value in text and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None
