"""Redaction of PII in a scenario: typed placeholders, and pseudonyms for values of its world.

    text   Mail anna@example.org about 4711, I am Anna Bell.   →   Mail person1@example.com about 4711, I am Kim [name].
    world  {"anna@example.org": {"first_name": "Anna"}}        →   {"person1@example.com": {"first_name": "Kim"}}

A value in the world or in the expected calls gets the same pseudonym everywhere, so that the user's texts still match
the records. Any other value becomes its kind in brackets. Order numbers and identifiers stay. A pseudonym depends on
the scenario's id, so that two scenarios cannot be linked by it.

Names of tools and of their arguments stay, because an environment or a reader of the text could not use others. A part
of a person's name that is also the name of a field, or an ordinary word, is replaced only where it is capitalised:

    I am Anna Price. What is the price?    {"lamp": {"price": 30}}    →    I am [name] Kim. What is the price?
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from grpo.messages import Message, ToolCall
from grpo.scenario import Expected, Scenario
from grpo.scenarios.occurrences import KnownValues, compact, fold
from grpo.scenarios.pii import PIIKind, find_pii, pii_fields

_FIRST = ("Alex", "Robin", "Kim", "Jamie", "Noa", "Sascha", "Charlie", "Rene", "Toni", "Jo")
_NUMBERS: tuple[PIIKind, ...] = ("phone", "card", "national id", "iban")
"""Kinds that are compared without separators: `030 901820` and `030901820` are equal."""
_ALSO_WORDS = frozenset(
    (
        *("art", "bill", "chase", "drew", "faith", "frank", "grace", "grant", "hope", "hunter", "joy", "mark", "may"),
        *("miles", "pat", "price", "rich", "rob", "rose", "sue", "will"),
    )
)
"""Names that are ordinary words in small letters."""
_LARGEST = 10**64
_ATTEMPTS = 100
"""Draws of a pseudonym before a name gets a number."""


def redact(scenario: Scenario) -> tuple[Scenario, Counter[PIIKind]]:
    """Redact a scenario. Returns it with the number of its distinct values of personal data by kind.

    Raises `ValidationError` if the result is invalid, e.g. too long, because a placeholder may be longer than the value
    that it replaces.
    """
    redaction = _Redaction(scenario)
    return redaction.apply(scenario), redaction.counts


class _Redaction:
    """Personal data of a scenario, and the substitutes for it."""

    def __init__(self, scenario: Scenario) -> None:
        expected = scenario.expected
        self._texts = (*scenario.user_responses, scenario.goal, scenario.context, *expected.responses, *expected.facts)
        self._records = (scenario.world, expected.calls, expected.state)
        self._id = scenario.id
        self._words = {fold(name) for record in self._records for name in _field_names(record)} | _ALSO_WORDS
        """Words that are not names in small letters."""
        self._kinds = kinds = self._find()
        numbers = {value for value, kind in kinds.items() if kind in _NUMBERS}
        self._values = KnownValues(texts=kinds.keys() - numbers, numbers=numbers)
        world_texts = (text for record in self._records for text in _strings(record))
        inside = {value for text in world_texts for value in self._values.find_all(text)}
        self._substitutes: dict[str, str] = {}
        self._used: set[str] = set()
        for number, (value, kind) in enumerate(kinds.items(), start=1):
            substitute = self._unused(value, kind, number) if value in inside else f"[{kind}]"
            self._substitutes[value] = substitute
            self._used.add(substitute)
        self.counts = Counter(kinds.values())

    def _find(self) -> dict[str, PIIKind]:
        """Values in their comparable form with their kinds. Names are split into words."""
        arguments = [call.get("arguments") for call in self._records[1]]  # `name` of a call names a tool, not a person
        values: list[tuple[PIIKind, str]] = []
        for text in (*self._texts, *(text for record in self._records for text in _strings(record))):
            values += [(span.kind, text[span.start : span.stop]) for span in find_pii(text)]
        for record in (self._records[0], arguments, self._records[2]):
            values += pii_fields(record)
        kinds: dict[str, PIIKind] = {}
        for kind, text in values:
            for part in text.split() if kind == "name" else (text,):
                if kind in _NUMBERS or len(part) > 1:
                    kinds.setdefault(compact(part) if kind in _NUMBERS else fold(part), kind)
        return kinds

    def _unused(self, value: str, kind: PIIKind, number: int) -> str:
        """A pseudonym that no other value of the scenario has, because otherwise two records could become one."""
        candidates = (self._pseudonym(value, kind, number, attempt) for attempt in range(_ATTEMPTS + 1))
        return next((candidate for candidate in candidates if candidate not in self._used), f"[{kind} {number}]")

    def _pseudonym(self, value: str, kind: PIIKind, number: int, attempt: int) -> str:
        text = f"{self._id}\0{value}" + (f"\0{attempt}" if attempt else "")
        seed = hashlib.sha256(text.encode()).digest()
        if kind == "email":
            return f"person{number}@example.com"
        if kind == "name":
            return _FIRST[seed[0] % len(_FIRST)] + (str(number) if attempt >= _ATTEMPTS else "")
        if kind == "ip":
            return f"192.0.2.{1 + seed[0] % 254}"  # reserved for documentation by RFC 5737
        if kind == "address":
            return f"{number} Sample Street"
        digits = itertools.cycle(seed)
        return "".join(str(1 + next(digits) % 9) if letter.isdigit() else letter for letter in value)

    def apply(self, scenario: Scenario) -> Scenario:
        """The scenario with the substitutes."""
        if not self._kinds:
            return scenario

        def text(value: str) -> str:
            parts, end = [], 0
            for start, stop, known in self._values.find(value):
                if not self._is_word(known, value[start:stop]):
                    parts += [value[end:start], self._substitute(known, value[start:stop])]
                    end = stop
            return "".join((*parts, value[end:]))

        def record(value: Any) -> Any:
            if isinstance(value, str):
                return text(value)
            if isinstance(value, dict):
                kept = {"name": value["name"]} if _is_call(value) else {}
                return {name if name in kept else text(name): record(item) for name, item in value.items()} | kept
            if isinstance(value, (list, tuple)):
                return [record(item) for item in value]
            if _is_number(value) and str(value) in self._substitutes:
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

    def _is_word(self, value: str, original: str) -> bool:
        """True for a part of a name where it is a word or the name of a field."""
        return self._kinds[value] == "name" and value in self._words and original.islower()

    def _substitute(self, value: str, original: str) -> str:
        """Replacement of a value. A number keeps its separators."""
        text = self._substitutes[value]
        if self._kinds[value] not in _NUMBERS or text.startswith("["):
            return text
        letters = iter(text)
        pairs = ((letter, next(letters) if letter.isalnum() else letter) for letter in original)
        return "".join(new if letter.isdigit() else letter for letter, new in pairs)


def redact_messages(name: str, messages: Sequence[Message]) -> list[Message]:
    """Redact messages with the pseudonyms of one scenario, so that values in calls keep their form.

    Raises `ValidationError` like `redact`.
    """
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for part in messages for call in part.tool_calls]
    texts = tuple(message.content for message in messages)
    scenario = Scenario(id=name, goal="-", expected=Expected(responses=texts, calls=tuple(calls)))
    expected = redact(scenario)[0].expected
    remaining = iter(expected.calls)
    redacted = []
    for message, text in zip(messages, expected.responses, strict=True):
        own = [next(remaining) for _ in message.tool_calls]
        part = tuple(ToolCall(name=call["name"], arguments=call["arguments"]) for call in own)
        redacted.append(Message(role=message.role, content=text, tool_calls=part))
    return redacted


def _is_call(record: dict[str, Any]) -> bool:
    """True for a tool call. Its `name` is the one of the tool."""
    return "name" in record and "arguments" in record


def _field_names(value: Any) -> Iterator[str]:
    """Names of tools, of their arguments and of the fields of records. A key of a whole record may be a person."""
    if isinstance(value, dict):
        if _is_call(value):
            yield str(value["name"])
        for name, item in value.items():
            if not isinstance(item, dict):
                yield str(name)
            yield from _field_names(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _field_names(item)


def _strings(value: Any) -> Iterator[str]:
    """Texts in a record: keys, values, and also integers, because a user may spell them digit by digit."""
    if isinstance(value, str):
        yield value
    elif _is_number(value):
        yield str(value)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield str(name)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _is_number(value: Any) -> bool:
    """True for an integer that could be a telephone or a card number.

    Integers are bounded, because Python does not write an integer of more than 4,300 digits as text.
    """
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST
