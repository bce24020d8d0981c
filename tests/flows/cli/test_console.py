"""Text on its way to the terminal."""

from __future__ import annotations

import io

import pytest
from rich.table import Table

from flows.cli.console import PlainConsole, printable


@pytest.mark.parametrize(
    "text", ["pip install 'grpo[vllm]'", "[/x]", "[red]x[/]", ":smile:", "[link=http://x]y", "a\\[b]"]
)
def test_text_is_printed_as_it_is(text: str):
    """In a line and in a cell of a table."""
    shown = io.StringIO()
    console = PlainConsole(file=shown, width=100)
    console.print(text)
    table = Table("what")
    table.add_row(text)
    console.print(table)
    assert shown.getvalue().startswith(f"{text}\n")
    assert shown.getvalue().count(text) == 2


def test_control_characters_are_written_as_escapes():
    """Nothing in a name clears the screen; line breaks and letters of any language stay."""
    assert printable("a\x1b[2J\r\x00\udcff\nß日\t") == "a\\x1b[2J\\r\\x00\\udcff\nß日\t"
