"""The run config in README.md."""

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


def test_the_lines_of_the_readme_follow_one_another_in_one_shell():
    """None leaves the folder of the clone, as the lines after it name files there."""
    lines = shell_lines((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "make run" in lines
    assert "grpo init shop && grpo train shop/grpo.yaml" in lines
    assert [line for line in lines if "cd " in line] == []
