"""docs/internals/benchmarks.md, written from benchmarks.json: what was measured last of each part, where and when."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tests.places import INTERNALS, ROOT

PAGE, STORE = "benchmarks.md", "benchmarks.json"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Table(_Value):
    """A Markdown table."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        return "\n".join("| " + " | ".join(row) + " |" for row in (self.head, ("---",) * len(self.head), *self.rows))


class Versus(_Value):
    """A line of the gist: a measure, both sides, and how far they are apart."""

    measure: str
    ours: str
    against: str
    ratio: float
    """Ratio to ours, above 1 where ours is better."""
    bound: float
    """Lower bound of the ratio."""

    def row(self) -> tuple[str, ...]:
        kept = "" if self.ratio >= self.bound else ": missed"
        return self.measure, self.ours, self.against, f"{self.ratio:.1f} ×", f"{self.bound:g} ×{kept}"


class Findings(_Value):
    """Measurements of one part."""

    title: str
    text: str
    """Description of the measurement."""
    tables: tuple[Table, ...] = ()
    gist: tuple[Versus, ...] = ()


class Section(_Value):
    """Findings, and where they were made."""

    findings: Findings
    measured: str


def commit() -> str:
    """This commit, and whether the code has changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--", "grpo", "tasks", "flows", "data") else ""
    return f"{git('rev-parse', '--short', 'HEAD')}{changed}"


def here() -> str:
    """This machine, this moment, this commit."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl"))
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {packages}, "
        f"commit {commit()}, {datetime.now(UTC):%Y-%m-%d}"
    )


def replace_results(page: Path, heading: str, text: str, table: Table) -> None:
    """Replace a section of a page up to the end of its table. The text after the table stays."""
    old = page.read_text(encoding="utf-8")
    begin = old.index(heading)
    row = old.rindex("\n| ", begin, old.index("\n## ", begin + len(heading)))
    end = old.index("\n", row + 1)
    page.write_text(f"{old[:begin]}{heading}\n{text}\n\n{table.markdown()}{old[end:]}", encoding="utf-8")


def read(folder: Path = INTERNALS) -> dict[str, Section]:
    """Measurements so far, by part."""
    store = folder / STORE
    return _Sections.model_validate_json(store.read_bytes()).parts if store.is_file() else {}


def keep(part: str, section: Section, order: Sequence[str], folder: Path = INTERNALS) -> None:
    """Put a section in the place of the one that its part had, and write the page again, parts in this order.

    What could not be measured here does not replace what was measured elsewhere.
    """
    known = read(folder)
    if section.findings.tables or part not in known:
        known[part] = section
    parts = {name: known[name] for name in order if name in known}
    (folder / STORE).write_text(_Sections(parts=parts).model_dump_json(indent=1) + "\n", encoding="utf-8")
    (folder / PAGE).write_text(render(tuple(parts.values())), encoding="utf-8")


def render(sections: Sequence[Section]) -> str:
    """The page: the gist, then every part with its tables."""
    gist = [line.row() for section in sections for line in section.findings.gist]
    blocks = ["# Benchmarks", "Written by `make bench`; each part says where and at which commit it was measured."]
    if gist:
        blocks.append(Table(head=("measure", "ours", "against", "ratio", "at least"), rows=tuple(gist)).markdown())
    for section in sections:
        findings = section.findings
        blocks += [f"## {findings.title}", findings.text, *(table.markdown() for table in findings.tables)]
        blocks.append(f"Measured on {section.measured}.")
    return "\n\n".join(blocks) + "\n"


class _Sections(_Value):
    parts: dict[str, Section]
