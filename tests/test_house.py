"""The shape of the project: sizes, names, and the licence of what is shipped."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.places import DESK_MODEL, ROOT

MODULES = [path for folder in ("flows", "tasks", "grpo") for path in sorted((ROOT / folder).rglob("*.py"))]
BOASTS = re.compile(
    r"(advanced|enhanced|ultimate|improved|smart|intelligent|comprehensive|utils|helpers|_v2)", re.IGNORECASE
)
LONGEST, LONGEST_TASK = 400, 90


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_has_one_noun_and_a_readable_size(path: Path):
    """At most 400 lines, 90 for a task; no adjective of quality in any name."""
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    assert lines <= (LONGEST_TASK if path.parent.name == "tasks" and path.stem not in ("stage", "locks") else LONGEST)
    names = re.findall(r"^\s*(?:def|class) (\w+)", text, flags=re.MULTILINE)
    assert not [name for name in [path.stem, *names] if BOASTS.search(name)]


def test_the_embedded_model_is_small_and_safe():
    """At most 8 MB, weights in safetensors, and a card that says where it comes from."""
    files = [path for path in DESK_MODEL.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8_000_000
    assert {path.suffix for path in files} <= {".json", ".jinja", ".safetensors", ".md"}
    assert (DESK_MODEL / "README.md").is_file()


def test_no_flow_hides_a_standard_module():
    """Prefect puts the folder of a deployed flow first on the path, also of the processes that it starts."""
    names = {path.stem for path in (ROOT / "flows").glob("*.py")}
    assert not names & sys.stdlib_module_names
