"""The terminal: text is printed as it is."""

from __future__ import annotations

from typing import IO

from rich.console import Console
from rich.text import Text


class PlainConsole(Console):
    """A console to which no text is markup: names, paths, records and messages may hold `[/x]` or `:smile:`.

    Control characters are written as escapes, so that no text moves the cursor or colours the screen. Styles are given
    as `Text` by the code that prints.
    """

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, width: int | None = None) -> None:
        super().__init__(stderr=stderr, file=file, width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: object) -> Text:
        """See `Console.render_str`, which all strings and cells of tables pass."""
        return super().render_str(printable(text), **options)  # type: ignore[arg-type]


def printable(text: str) -> str:
    r"""The text with control characters and undecodable bytes as escapes: `\x1b[2J` instead of an empty screen."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )
