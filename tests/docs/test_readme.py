"""The first screen, the commands and the run config of README.md."""

from __future__ import annotations

import re
from pathlib import Path

from grpo.config.pipeline import load_config
from tests.command_lines import shell_lines
from tests.places import ROOT


def test_the_config_of_the_readme_is_valid(tmp_path: Path):
    """Every key is known, and what it leaves out has a default."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    config = tmp_path / "billing.yaml"
    config.write_text(text, encoding="utf-8")
    assert load_config(config).registry.model_name == "billing"


FIRST_SCREEN = 32
"""Lines."""


def test_the_first_screen_shows_what_a_newcomer_decides_by():
    """The one command, `pip install`, the drawing of the pipeline, and a public task with its command and interval."""
    screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:FIRST_SCREEN])
    signs = [
        "make run",
        "pip install",
        "─ingest→",
        r" points more \[[\d.]+, [\d.]+\]",
        "grpo train data/configs/babyai",
    ]
    places = [re.search(sign, screen) for sign in signs]
    assert None not in places
    assert [place.start() for place in places if place] == sorted(place.start() for place in places if place)


def test_parts_come_in_the_order_in_which_they_are_needed():
    """A picture, the reader's own config, then the numbers, the index of the pages, and what contributors need."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    parts = ["![The report", "```yaml", "## Results", "](docs/README.md)", "## Speed", "## The tree"]
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)


def test_the_lines_of_the_readme_follow_one_another_in_one_shell():
    """None leaves the folder of the clone, as the lines after it name files there."""
    lines = shell_lines((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "make run" in lines
    assert "grpo init shop && grpo train shop/grpo.yaml" in lines
    assert [line for line in lines if "cd " in line] == []
