"""The tables of docs/internals/chat.md: `python -m tests.models.chat_formats` renders with each of TRL's templates.

`python -m tests.models.chat_formats FOLDER` also renders with the files `*.jinja` of a folder, which hold the published
templates of models that TRL does not ship. Each is called like its model: `MiniMax-M2.jinja`. The rows of files that
are not in the folder stay, and each row has the digest of its file.
"""

from __future__ import annotations

import hashlib
import re
import sys
from importlib.metadata import version
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from grpo.errors import PolicyError
from grpo.messages import Tool
from grpo.renderers.chat_format import ChatFormat
from grpo.renderers.chat_template import Renderer
from grpo.renderers.template_choice import remedies
from tests.benchmarks.page import Table
from tests.grpo.renderers.published import names, of_family, tokenizer
from tests.places import INTERNALS

PAGE = INTERNALS / "chat.md"
HEAD = ("template", "tools and calls", "other generic parts", "calls per turn", "later system message", "no user")
FILE_HEAD = ("file", *HEAD[1:], "SHA-256")
_TABLE = re.compile(r"^\| template \| tools and calls .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_FILE_TABLE = re.compile(r"^\| file \| tools and calls .*?(?=\n*\Z|\n\n)", re.MULTILINE | re.DOTALL)
_ENDS = {
    "minimax": "[e~[",
    "granite": "<|end_of_text|>",
    "command": "<|END_OF_TURN_TOKEN|>",
    "kimi": "<|im_end|>",
    "deepseek": "<｜end▁of▁sentence｜>",
    "glm": "<|endoftext|>",
    "nemotron-nano": "<SPECIAL_12>",
    "ministral": "</s>",
    "lfm": "<|im_end|>",
}
"""Tokens that end a turn, by the beginnings of the names of models."""
_DIGITS = 12
"""Digits of a digest that a row has."""
_LOOK_UP = Tool(
    name="look_up", description="Look an order up.",
    parameters={"type": "object", "properties": {"order": {"type": "string"}}},
)  # fmt: skip


def published() -> list[str]:
    """Names of the templates; variants for training are what is used in the place of some of them."""
    return [name for name in names() if not name.endswith("_training")]


def row(name: str) -> tuple[str, ...]:
    """Row of a template, with the line that makes it usable if it is refused without one."""
    return _row(name, of_family(name))


def file_row(path: Path) -> tuple[str, ...]:
    """Row of a file, with the digest of its template."""
    source = path.read_text(encoding="utf-8")
    end = next((end for family, end in _ENDS.items() if path.stem.lower().startswith(family)), "<eos>")
    digest = hashlib.sha256(source.encode()).hexdigest()[:_DIGITS]
    return (*_row(path.stem, tokenizer(source, end=end)), digest)


def _row(name: str, given: PreTrainedTokenizerFast) -> tuple[str, ...]:
    try:
        return _cells(name, Renderer(given, tools=(_LOOK_UP,)).chat_format)
    except PolicyError:
        for line in (*remedies(str(given.chat_template)), "{%- set tools = tools or [] %}"):
            with_line = tokenizer(f"{line}\n{given.chat_template}", end=str(given.eos_token))
            try:
                chat_format = Renderer(with_line, tools=(_LOOK_UP,)).chat_format
            except PolicyError:
                continue
            return _cells(f"{name}, with `{line}`", chat_format)
        return (name, "refused", *[""] * (len(HEAD) - 2))


def _cells(name: str, form: ChatFormat) -> tuple[str, ...]:
    generic = [part for part in form.added if part not in ("tools", "calls")]
    reads = ["read" if reads else "refused" for reads in (form.later_system, form.without_user)]
    calls = form.calls.replace("<tool_call>", "`<tool_call>`")  # a page would take it for an element
    return (name, calls, ", ".join(generic), "one" if form.one_call else "any", *reads)


def page_rows(*, of_files: bool = False) -> list[tuple[str, ...]]:
    """Rows of the page without their head: of TRL's templates, or `of_files`."""
    table = (_FILE_TABLE if of_files else _TABLE).search(PAGE.read_text(encoding="utf-8"))
    assert table is not None
    return [tuple(cell.strip() for cell in line[1:-1].split(" | ")) for line in table[0].splitlines()[2:]]


def write(templates: Path | None = None) -> None:
    """Write the tables again, and the rows of the files in the folder `templates`."""
    table = Table(head=HEAD, rows=tuple(map(row, published()))).markdown()
    text = _TABLE.sub(lambda _: table, PAGE.read_text(encoding="utf-8"))
    files = [] if templates is None else sorted(templates.glob("*.jinja"))
    rows = {cells[0].partition(",")[0]: cells for cells in [*page_rows(of_files=True), *map(file_row, files)]}
    of_files = Table(head=FILE_HEAD, rows=tuple(rows[name] for name in sorted(rows))).markdown()
    text = _FILE_TABLE.sub(lambda _: of_files, text)
    text = re.sub(r"templates of TRL [\d.]+\d", f"templates of TRL {version('trl')}", text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:2]))
