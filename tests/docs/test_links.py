"""Links between the pages, and the index of the pages in docs/README.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.command_lines import pages
from tests.places import ROOT

DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[tuple[str, str]]:
    """File and heading of each link of a page that leads to a file of the project; an empty file is the page itself."""
    targets = re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", page.read_text(encoding="utf-8")))
    parts = [target.partition("#") for target in targets if not re.match(r"[a-z]+:", target)]
    return [(file, heading) for file, _, heading in parts]


def headings(page: Path) -> set[str]:
    """Anchors of a page as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


def test_every_link_leads_to_a_file_and_a_heading():
    """In all pages, pictures included."""
    broken = []
    for page in pages():
        for file, heading in links(page):
            target = page.parent / file if file else page
            if not target.exists() or (heading and heading not in headings(target)):
                broken.append(f"{page.relative_to(ROOT)}: {file}#{heading}")
    assert broken == []


def test_every_page_that_is_named_is_there():
    """By `docs/` and its name, in the code, its messages, the tests, the configs and the Makefile."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    missing = []
    for path in (ROOT / name for name in listed):
        if path.is_file() and path.suffix in ("", ".py", ".yaml", ".md", ".sh", ".toml"):
            names = re.findall(r"(?<![\w/.-])docs/[a-z_/]+\.(?:md|json|png)", path.read_text(encoding="utf-8"))
            missing += [f"{path.relative_to(ROOT)}: {name}" for name in names if not (ROOT / name).is_file()]
    assert missing == []


def test_the_index_lists_every_page():
    """Once each: the pages for users first, at most 14, each with a sentence, then the ones in docs/internals."""
    users, internals = (DOCS / "README.md").read_text(encoding="utf-8").split("\n## How it is made and measured\n")
    rows = re.findall(r"^\| \[([\w.]+)\]\(\1\) \| .+\. \|$", users, re.MULTILINE)
    assert sorted(rows) == sorted(path.name for path in DOCS.glob("*.md") if path.name != "README.md")
    assert len(rows) <= 14
    rows = re.findall(r"^\| \[([\w.]+)\]\(internals/\1\) \| .+ \|$", internals, re.MULTILINE)
    assert sorted(rows) == sorted(path.name for path in (DOCS / "internals").glob("*.md"))
