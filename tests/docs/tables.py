"""Tables of pages whose rows the code has: `python -m tests.docs.tables` writes them into docs/.

A table is found on its page by its first line. What stands between two tables is written by hand.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from grpo.scenario import Expected, Metadata, Scenario
from tests.benchmarks.page import Table
from tests.command_lines import commands
from tests.docs.log_rows import DESKS, FIELDS, GUESSES, RECORDS
from tests.grpo.scenarios.chat_samples import FORMATS
from tests.grpo.scenarios.export_samples import CALL_EXPORTS, EXPORTS, Export
from tests.grpo.scenarios.program_samples import PROGRAM_FILES
from tests.places import ROOT

PAGES = ("commands.md", "logs.md", "scenarios.md")


def tables(page: str) -> tuple[Table, ...]:
    """The tables of a page that are written by the command."""
    return {"commands.md": _of_commands, "logs.md": _of_logs, "scenarios.md": _of_scenarios}[page]()


def rewritten(text: str, table: Table) -> str:
    """The page with the rows of the table. Raises `ValueError` if the page does not have its first line once."""
    head = table.markdown().partition("\n")[0]
    found = re.findall(rf"^{re.escape(head)}\n(?:\|.*\n?)+", text, re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"the page has {len(found)} tables that begin with {head}")
    return text.replace(found[0], table.markdown() + "\n")


def page_text(page: str) -> str:
    """The page as it should be."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for table in tables(page):
        text = rewritten(text, table)
    return text


def _of_commands() -> tuple[Table, ...]:
    firsts = {name: " ".join((command.help or "").split("\n\n")[0].split()) for name, command in commands().items()}
    rows = tuple((f"`grpo {name}`", first) for name, first in firsts.items())
    return (Table(head=("command", "what it does"), rows=rows),)


def _of_scenarios() -> tuple[Table, ...]:
    rows = tuple(
        (f"`{prefix}{name}`", " ".join((field.description or "").split()))
        for prefix, model in (("", Scenario), ("expected.", Expected), ("metadata.", Metadata))
        for name, field in model.model_fields.items()
        if prefix or name not in ("expected", "metadata")
    )
    return (Table(head=("field", "meaning"), rows=rows),)


def _of_logs() -> tuple[Table, ...]:
    exports = (*(export for export in EXPORTS if export.in_table), *CALL_EXPORTS)
    return (
        Table(head=("format", "is recognized by"), rows=tuple((form.name, form.known_by) for form in FORMATS)),
        Table(
            head=("chat program", "is recognized by", "what is read"),
            rows=tuple((program.name, program.known_by, program.reads) for program in PROGRAM_FILES),
        ),
        Table(
            head=("export", "settings besides `kind: input_output`"),
            rows=tuple((export.name, settings_in_words(export)) for export in exports),
        ),
        Table(
            head=("kind", "a record", "who is the user"),
            rows=tuple((f"`{kind}`", record, user) for kind, (record, user, _) in DESKS.items()),
        ),
        Table(head=("the guess", "if"), rows=tuple((row.guess, row.condition) for row in GUESSES)),
        Table(head=("of a record", "becomes"), rows=tuple((row.part, row.becomes) for row in RECORDS)),
        Table(head=("of the log", "field of the scenario"), rows=tuple((part, field) for part, field, *_ in FIELDS)),
    )


def settings_in_words(export: Export) -> str:
    """Settings of an export as they stand in a config, each in one line, with the words after them."""
    settings = {key: value for key, value in export.settings.items() if key != "kind"}
    return (", ".join(f"`{key}: {_flow(value)}`" for key, value in settings.items()) or "none") + export.note


def _flow(value: Any) -> str:
    """A value in YAML's flow style, in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return json.dumps(value) if not isinstance(value, (str, dict)) else text.removesuffix("\n...\n").strip()


def write() -> None:
    """Write the tables into their pages."""
    for page in PAGES:
        (ROOT / "docs" / page).write_text(page_text(page), encoding="utf-8")


if __name__ == "__main__":
    write()
