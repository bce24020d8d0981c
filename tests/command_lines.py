"""The commands that the project's pages print, and the real command that parses them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from grpo_cli.app import app
from tests.places import ROOT

PROGRAMS = ("grpo", "make", "prefect")
_COMMAND = re.compile(r"^(?:\$ )?((?:[A-Z_]+=\S+ )*)(?:\S*/)?(grpo|make|prefect) (?=\S)(.*)$")
_FENCE = re.compile(r"^[ ]{0,3}```.*?^[ ]{0,3}```[ ]*$", re.MULTILINE | re.DOTALL)
_USAGE = typer.BadParameter.__mro__[1]
"""The error of the command for arguments that it does not take."""
_INLINE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A command as a page prints it."""

    page: str
    line: int
    program: str
    arguments: tuple[str, ...]
    mentioned: bool
    """True in a sentence, where arguments may be missing."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.program} {' '.join(self.arguments)}"


def pages() -> list[Path]:
    """Every page that a reader may take a command from."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *(ROOT / "deployments").glob("**/*.md")]
    return sorted([*found, *(ROOT / "data").glob("**/*.md")])


def commands_of(page: Path) -> Iterator[CommandLine]:
    """The commands in the fenced, indented and quoted parts of a page."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name

    def block(part: str, first: int) -> Iterator[CommandLine]:
        joined = re.sub(r"\\\n\s*", "\0", part)  # a row that goes on in the next one
        line = first
        for row in joined.split("\n"):
            yield from _command(row.replace("\0", " ").strip(), name, line, mentioned=False)
            line += 1 + row.count("\0")

    for match in _FENCE.finditer(text):
        yield from block(match[0], text[: match.start()].count("\n") + 1)
    prose = _FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in re.finditer(r"(?:^(?: {4}|\t).*\n?)+", prose, flags=re.MULTILINE):
        yield from block(match[0], prose[: match.start()].count("\n") + 1)
    for match in _INLINE.finditer(prose):
        line = prose[: match.start()].count("\n") + 1
        yield from _command(" ".join(match[1].split()), name, line, mentioned=True)


def shell_lines(text: str) -> list[str]:
    """The indented lines of a page as a shell gets them, without their comments."""
    lines = re.findall(r"^    (.*)$", text, re.MULTILINE)
    return [line for line in (line.partition("#")[0].strip() for line in lines) if line]


def _command(text: str, page: str, line: int, *, mentioned: bool) -> Iterator[CommandLine]:
    for part in re.split(r"\s(?:&&|;|\|)\s", text):
        found = _COMMAND.match(part.strip())
        if found is not None:
            arguments = tuple(shlex.split(found[3], comments=True))
            yield CommandLine(page=page, line=line, program=found[2], arguments=arguments, mentioned=mentioned)


@cache
def examples() -> list[CommandLine]:
    """The examples in the help of every command."""
    return [
        CommandLine(page=f"grpo {name} --help", line=number, program="grpo", arguments=arguments, mentioned=False)
        for name, command in commands().items()
        for number, text in enumerate(re.findall(r"^Example: grpo (.+)$", command.help or "", re.MULTILINE), start=1)
        for arguments in [tuple(shlex.split(text))]
    ]


@cache
def commands() -> dict[str, Any]:
    """The commands of `grpo`, by name."""
    return dict(get_command(app).commands)  # type: ignore[attr-defined]


def parse(line: CommandLine) -> dict[str, Any]:
    """The values that the real command reads from a line; raises `AssertionError` for what it does not take."""
    name, *rest = line.arguments
    if name.startswith("--"):
        assert name in ("--help", "--install-completion", "--show-completion"), f"{line}: no such option"
        return {}
    assert name in commands(), f"{line}: no command {name}; there are {', '.join(commands())}"
    if "--help" in rest:
        return {}
    command = commands()[name]
    if rest and rest[0] in getattr(command, "commands", {}):
        name, *rest = rest
        command = command.commands[name]
    try:
        with command.make_context(name, rest) as context:
            return dict(context.params)
    except _USAGE as error:
        if line.mentioned and type(error).__name__ in ("MissingParameter", "NoArgsIsHelpError"):
            return {}
        raise AssertionError(f"{line}: {error}") from error
