"""Every regular expression of the package, and the texts that make a bad one slow.

A pattern that scans a run of characters once from each of its positions takes the square of a text's length, and one
with two ways to read a run can take more. Whoever writes the text decides then how long the process is busy, with the
interpreter's lock. So each pattern is searched in texts of repeated units: single characters, words of the formats, and
the beginnings of what the pattern itself matches. It is also searched in texts that begin as a match and go on with a
run of one character, because a pattern that is compared with the beginning of a text never sees the run otherwise.
"""

from __future__ import annotations

import ast
import importlib
import random
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import regex

from tests.places import ROOT

_CALLS = frozenset(("compile", "sub", "subn", "search", "match", "fullmatch", "split", "findall", "finditer"))
_UNITS = (
    *"1aA .-_:,;@/\\\"'<>[]{}()|#$=+*?!\n\t⸨é",
    *("a ", "A ", "1 ", "1.", "1,", "a.", "a-", "a@", "aA", "Aa", "Aa ", "a\n", " \n", "<<", ">>", "<a", "<a>", "</a>"),
    *(
        "[[",
        "]]",
        "{{",
        "{a",
        "{}",
        '"a',
        '{"a":',
        '{"name": "',
        "```",
        "<|",
        "|>",
        "<|a|>",
        "answer ",
        "number ",
        "not ",
    ),
    *("user_1", "user: ", "data: ", "http://", "a: ", "- a: ", "is ", "I ", "you ", "but "),
)
_JOINTS = (" ", "-", "'", ",", ".", ":", "/", "_", "\n", "")
"""Separators between two beginnings of matches."""
_RUNS = ("\n", " ", "a", "1", "a\n")
"""Units that follow the beginning of a match."""
_LENGTHS = (8, 12, 18, 27, 40, 60, 90, 128, 256, 512, 1_024, 2_048, 4_096)
"""Characters of the texts of a pattern, shortest first. The first slow search is the last, since the next might never
end: the time of the worst patterns doubles with each character."""
_FIRST_LOOK = 1_024  # characters
_FAST_S = 0.0003
"""A search of the first look within this time is not measured again: the square takes longer."""
_SLOW_S = 0.02
"""A search that takes longer is not repeated with a longer text."""
_TIMES, _GROWTH = 16, 64
"""For 16 times the length, a linear search takes 16 times as long, and the square takes 256 times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Place in the source where a pattern is made or used: a module, and the name or function that it is in."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


def sites() -> Iterator[tuple[Site, str | None]]:
    """All places of the package with a pattern, and the pattern where it is written there as a plain text."""
    for folder in ("grpo", "tasks/grpo_tasks", "flows"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            base = ROOT if folder == "grpo" else ROOT / folder.partition("/")[0]
            module = ".".join(path.relative_to(base).with_suffix("").parts)
            for name, pattern in _calls(ast.parse(path.read_text(encoding="utf-8")), ""):
                yield Site(module=module, name=name), pattern


def _calls(node: ast.AST, name: str) -> Iterator[tuple[str, str | None]]:
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}".lstrip(".")
        elif not name and isinstance(child, ast.Assign | ast.AnnAssign):
            inner = ast.unparse(child.targets[0] if isinstance(child, ast.Assign) else child.target)
        if (
            isinstance(child, ast.Call)
            and isinstance(child.func, ast.Attribute)
            and isinstance(child.func.value, ast.Name)
            and child.func.value.id in ("re", "regex")
            and child.func.attr in _CALLS
        ):
            first = child.args[0]
            yield inner, first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
        yield from _calls(child, inner)


def patterns_at(site: Site) -> list[re.Pattern[str]]:
    """Compiled patterns of a name of a module, wherever they are in its value."""
    value = getattr(importlib.import_module(site.module), site.name)
    return list(_patterns(value))


def _patterns(value: Any) -> Iterator[Any]:
    if isinstance(value, re.Pattern | regex.Pattern):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _patterns(part)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for part in value:
            yield from _patterns(part)


def slow_unit(pattern: Any, *, method: str = "finditer") -> str | None:
    """First unit whose repetition takes more than the linear time, with what precedes it; None if there is none.

    Each search is bounded.
    """
    samples = _samples(pattern)
    texts = [("", unit) for unit in _units(samples)]
    begun = dict.fromkeys(sample[:end] for sample in samples[:3] for end in range(1, min(len(sample), 24) + 1))
    texts += [(begin, unit) for begin in begun for unit in _RUNS]
    return next((repr((begin, unit)) for begin, unit in texts if _grows(pattern, begin, unit, method)), None)


def _samples(pattern: Any) -> list[str]:
    """Texts that the pattern matches, without what looks around them. None of them for a pattern of `regex`."""
    if not isinstance(pattern, re.Pattern):
        return []
    parsed = re._parser.parse(pattern.pattern, pattern.flags)  # type: ignore[attr-defined]
    return [sample[:60] for seed in range(6) if (sample := _sample(parsed, random.Random(seed)))]


def _units(samples: list[str]) -> list[str]:
    """Units of the formats, beginnings of texts that the pattern matches, and two of them joined by a separator."""
    units = dict.fromkeys(_UNITS)
    for sample in samples[:2]:
        units.update(dict.fromkeys(sample[:end] for end in (*range(1, 16), len(sample)) if end <= len(sample)))
        units.update(dict.fromkeys(f"{sample[:end]} " for end in (len(sample) // 2, len(sample)) if end))
    words = list(dict.fromkeys(re.split(r"(?<=\w)\b", sample, maxsplit=1)[0] for sample in samples))
    one, other = (words * 2)[:2] if words else ("", "")
    units.update(dict.fromkeys(f"{one}{joint}{other}{joint}" for joint in _JOINTS if one))
    return list(units)


def _grows(pattern: Any, begin: str, unit: str, method: str) -> bool:
    """True if the time of a search grows faster than the length of its text, judged at the first slow length."""
    for length in _LENGTHS:
        seconds = _seconds(pattern, begin, unit, length, method)
        if length == _FIRST_LOOK and seconds < _FAST_S:
            return False
        if seconds > _SLOW_S:
            break
    return all(
        _growth(pattern, begin, unit, length, method) > _GROWTH for _ in range(3)
    )  # a busy machine may delay one


def _growth(pattern: Any, begin: str, unit: str, length: int, method: str) -> float:
    """How many times as long a text takes as its first sixteenth; of several measures the fastest counts."""
    long = min(_seconds(pattern, begin, unit, length, method) for _ in range(2))
    return long / min(_seconds(pattern, begin, unit, length // _TIMES, method) for _ in range(8))


def _seconds(pattern: Any, begin: str, unit: str, length: int, method: str) -> float:
    """CPU time of this thread for one search."""
    text = begin + (unit * (length // len(unit) + 1))[:length] + "\0"
    start = time.thread_time()
    found = getattr(pattern, method)(text)
    for _ in found if method == "finditer" else ():
        pass
    return time.thread_time() - start


def _sample(parsed: Any, rng: random.Random) -> str:
    """A text that a parsed pattern could match, without regard to what stands around it."""
    return "".join(_one(str(operation), argument, rng) for operation, argument in parsed)


def _one(operation: str, argument: Any, rng: random.Random) -> str:
    match operation:
        case "LITERAL":
            return chr(argument)
        case "NOT_LITERAL" | "ANY":
            return "a"
        case "IN":
            return _member(argument)
        case "BRANCH":
            return _sample(rng.choice(argument[1]), rng)
        case "SUBPATTERN":
            return _sample(argument[3], rng)
        case "ATOMIC_GROUP":
            return _sample(argument, rng)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            low, high, inner = argument
            return "".join(_sample(inner, rng) for _ in range(max(low, min(int(high), rng.randint(0, 2)))))
        case _:
            return ""


def _member(items: Any) -> str:
    """A character of a set, or a letter for one that is given by what is not in it."""
    names = {str(name): argument for name, argument in items}
    if "NEGATE" in names:
        return "a"
    if "LITERAL" in names:
        return chr(names["LITERAL"])
    if "RANGE" in names:
        return chr(names["RANGE"][0])
    return {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " "}.get(str(names.get("CATEGORY")), "a")
