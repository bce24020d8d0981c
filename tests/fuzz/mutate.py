"""Mutations: of bytes, of JSON values, of the cells of a row, and objects that only Python can hold."""

from __future__ import annotations

import copy
import random
from typing import Any

LITERALS = {"@inf@": "1e999", "@nan@": "NaN", "@digits@": "9" * 5000, "@deep@": "[" * 300 + "]" * 300}
"""JSON literals for these texts, which `json.dumps` does not write."""

_TOKENS = (
    *(b'"', b"\n", b"\r\n", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b",", b"\t", b"{", b"}", b"[", b"]"),
    *(
        b"NaN",
        b"1e999",
        b"\\ud800",
        b"[" * 300,
        b"9" * 5000,
        b'"' + (b"x," * 40_000 + b"\n") * 2 + b'"',
        b"null",
        b"-",
        b"\\",
    ),
)
_TEXTS = (
    *(
        "",
        " ",
        "\n",
        "\x00",
        "\u2028",
        "💥",
        "nan",
        "inf",
        "1e999",
        "-1",
        "9" * 5000,
        "x" * 9000,
        "<b>",
        "None",
        "null",
    ),
    *("[" * 5000, "{" * 300, "(" * 300, "-" * 5000 + "1", "1+" * 3000 + "1", "f(" * 150 + ")" * 150, '{"a": NaN}'),
    *("[" * 150 + "]" * 150, '"', "'", "{}", "[]", "[[]]", "7", "f()", "f(**{})", "f(x=1, x=2)", "@", "cp(1, 2, 3)"),
)


def nested(depth: int) -> Any:
    """Lists in lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def json_value(draw: random.Random) -> Any:
    """A value that no reader asked for."""
    plain = (
        None,
        True,
        False,
        0,
        -1,
        2**63,
        10**30,
        1e308,
        -0.0,
        0.5,
        [],
        {},
        [[]],
        {"": None},
        [None],
        [{}],
        {"a": {}},
    )
    kind = draw.randrange(4)
    if kind == 0:
        return copy.deepcopy(draw.choice(plain))
    if kind == 1:
        return draw.choice(_TEXTS)
    if kind == 2:
        return draw.choice((*LITERALS, "half \ud800"))
    return nested(draw.choice((20, 150, 190)))


def mutate_json(value: Any, draw: random.Random) -> Any:
    """A copy of a value in which one node is another one, is gone, has another name, or stands there twice."""
    root = [copy.deepcopy(value)]
    nodes = list(_nodes(root))
    container, key = draw.choice(nodes)
    action = draw.randrange(6)
    if action == 0 and container is not root:
        del container[key]
    elif action == 1 and isinstance(container, dict):
        container[draw.choice(("", "id", "name", "x" * 300, "\x00", str(key) * 2))] = container.pop(key)
    elif action == 2 and isinstance(container, list) and container is not root:
        container.insert(key, copy.deepcopy(container[key]))
    else:
        container[key] = json_value(draw)
    return root[0]


def _nodes(container: Any) -> Any:
    keys = range(len(container)) if isinstance(container, list) else list(container)
    for key in keys:
        yield container, key
        if isinstance(container[key], (dict, list)):
            yield from _nodes(container[key])


def mutate_cells(cells: list[str], draw: random.Random) -> list[str]:
    """A row with another cell, one more or one less."""
    changed = list(cells)
    action, place = draw.randrange(8), draw.randrange(len(cells))
    if action == 0 and len(cells) > 1:
        del changed[place]
    elif action == 1:
        changed.insert(place, "more")
    else:
        changed[place] = draw.choice((*_TEXTS, "a\nb", 'say "x"', ",\t;", "\ud800", "s99,smuggled\n" * 15_000))
    return changed


def mutate_bytes(content: bytes, draw: random.Random) -> bytes:
    """A file with a few bytes changed, inserted, repeated or cut out, or without its end."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        place = draw.randrange(len(data) + 1)
        width = draw.choice((1, 2, 8, 64, 512))
        action = draw.randrange(6)
        if action in (0, 1) and place < len(data):
            data[place] ^= 1 << draw.randrange(8)
        elif action == 2:
            data[place:place] = draw.choice(_TOKENS)
        elif action == 3:
            del data[place : place + width]
        elif action == 4:
            data[place:place] = data[place : place + width]
        elif draw.randrange(4) == 0:
            del data[place:]
        else:
            data[place : place + width] = draw.randbytes(width)
    return bytes(data)


def flip_byte(content: bytes, draw: random.Random) -> bytes:
    """A file of the same length, with one byte or a few in a row changed."""
    data = bytearray(content)
    place = draw.randrange(len(data))
    for position in range(place, min(len(data), place + draw.choice((1, 1, 1, 2, 8)))):
        data[position] ^= draw.randrange(1, 256)
    return bytes(data)


class Mute:
    """An object that cannot be shown, compared or counted."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class Hollow(dict[Any, Any]):
    """A dict that does not give its items."""

    def items(self) -> Any:
        raise OSError("gone")

    def keys(self) -> Any:
        raise KeyError("gone")

    def __iter__(self) -> Any:
        raise OSError("gone")


class Shout(str):
    """A text with ideas of its own."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        raise IndexError("no part")

    def strip(self, *_: Any) -> Any:
        return self


def python_value(draw: random.Random) -> Any:
    """A value that JSON does not know."""
    cycle: dict[str, Any] = {}
    cycle["self"] = [cycle]
    return draw.choice(
        (
            *({(1, 2): 3}, {1: 1, "1": 2}, {None: 1}, {b"x": 1}, {1.5: float("nan")}, cycle, nested(1200), nested(220)),
            *(10**5000, -(10**5000), float("nan"), float("inf"), 1j, b"\xff", {1, 2}, frozenset(), object(), Mute()),
            *(Hollow(a=1), Shout("text"), "half \ud800", "y" * 200_000, len, Exception("x"), range(3), iter(()), type),
            *((), (1,), bytearray(3), memoryview(b"x"), NotImplemented, ..., lambda: 1, Mute),
        )
    )


def python_object(item: Any, draw: random.Random) -> Any:
    """A record of a generator in which one node is such a value, or such a value itself."""
    if draw.randrange(5) == 0:
        return python_value(draw)
    root = [copy.deepcopy(item)]
    container, key = draw.choice(list(_nodes(root)))
    container[key] = python_value(draw)
    if isinstance(root[0], dict) and draw.randrange(8) == 0:
        root[0][(1, 2)] = "key"
    return root[0]
