"""Texts of strangers in Markdown. Scenario ids, names and reasons are shown as they are, never as markup.

a|b <i> [x](y)   →   a&#124;b &lt;i&gt; \\[x\\](y)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "~": "&#126;", "$": "&#36;", "@": "&#64;"}
_BACKSLASHED = frozenset("\\`*_{}[]#+!")
_LINKS = re.compile(r"(?<=[A-Za-z]):(?=//)|(?<=www)\.", re.IGNORECASE)


def escaped(text: str, *, limit: int = 200) -> str:
    """One line of Markdown that shows the text, without markup, links and control characters.

    If it is longer than `limit` characters, it is cut and ends with `…`.
    """
    shown, length = [], 0
    for letter in " ".join(text.split()):
        piece = _escaped_letter(letter)
        if length + len(piece) > limit - 1:
            shown.append("…")
            break
        shown.append(piece)
        length += len(piece)
    return _LINKS.sub(lambda match: f"&#{ord(match[0])};", "".join(shown))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Table of cells that are Markdown already."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _escaped_letter(letter: str) -> str:
    if not letter.isprintable():
        return "\\" + letter.encode("unicode_escape").decode("ascii")
    return _ENTITIES.get(letter) or (f"\\{letter}" if letter in _BACKSLASHED else letter)
