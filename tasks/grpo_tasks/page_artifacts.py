"""Markdown and tables for Prefect's page, in which untrusted text is escaped.

Prefect's page reads Markdown in documents, in descriptions and in the cells of tables. Scripts are taken out, but links
and pictures of other hosts are not. Names, categories, reasons and errors come from data, clients, models and user
code, and such a text could otherwise show a picture that tells its host who opens the page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from grpo.registry.markdown import escaped

_NUMBERED = re.compile(r"&#([0-9]+);")
_LONGEST = 2000
"""Characters that are shown of a text."""


def show_text(heading: str, *paragraphs: str, key: str, code: str = "", description: str | None = None) -> None:
    """Show a heading and paragraphs of plain text, and `code` in a block of its own."""
    shown = [f"# {_shown(heading)}", *map(_shown, paragraphs)]
    if code:
        shown.append("\n".join(f"    {line}" for line in code.splitlines()))
    create_markdown_artifact(
        "\n\n".join(shown), key=key, description=None if description is None else _shown(description)
    )


def show_table(rows: Sequence[Mapping[str, object]], *, key: str, description: str | None = None) -> None:
    """Show rows of plain cells. Texts, and the names of columns, are shown as they are."""
    shown = [
        {_shown(name): _shown(cell) if isinstance(cell, str) else cell for name, cell in row.items()} for row in rows
    ]
    create_table_artifact(shown, key=key, description=description)


def _shown(text: str) -> str:
    """Markdown that shows a text. Prefect's page shows an entity with a number as it is, so a backslash replaces it."""
    shown = _NUMBERED.sub(lambda match: f"\\{chr(int(match[1]))}", escaped(text, limit=_LONGEST))
    rest = shown.lstrip("0123456789")
    is_mark = rest[:1] in (("-", "+") if rest == shown else (".", ")"))  # of a list, if a blank follows
    return f"{shown.removesuffix(rest)}\\{rest}" if is_mark and rest[1:2] in ("", " ", "-") else shown
