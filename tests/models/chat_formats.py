"""The table of docs/internals/chat.md: `python -m tests.models.chat_formats` renders with each of TRL's templates."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

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
_TABLE = re.compile(r"^\| template \| tools and calls .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_LOOK_UP = Tool(
    name="look_up", description="Look an order up.",
    parameters={"type": "object", "properties": {"order": {"type": "string"}}},
)  # fmt: skip


def published() -> list[str]:
    """Names of the templates; variants for training are what is used in the place of some of them."""
    return [name for name in names() if not name.endswith("_training")]


def row(name: str) -> tuple[str, ...]:
    """Row of a template, with the line that makes it usable if it is refused without one."""
    given = of_family(name)
    try:
        return _cells(name, Renderer(given, tools=(_LOOK_UP,)).chat_format)
    except PolicyError:
        for line in remedies(str(given.chat_template)):
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


def page_rows() -> list[tuple[str, ...]]:
    """Rows of the page, without its head."""
    table = _TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert table is not None
    return [tuple(cell.strip() for cell in line[1:-1].split(" | ")) for line in table[0].splitlines()[2:]]


def write(folder: Path = INTERNALS) -> None:
    """Write the table anew."""
    page = folder / PAGE.name
    table = Table(head=HEAD, rows=tuple(map(row, published()))).markdown()
    text = _TABLE.sub(lambda _: table, page.read_text(encoding="utf-8"))
    text = re.sub(r"templates of TRL [\d.]+\d", f"templates of TRL {version('trl')}", text)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
