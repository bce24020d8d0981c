"""The run config in README.md."""

from __future__ import annotations

import re
from pathlib import Path

from grpo.config.pipeline import load_config
from tests.places import ROOT


def test_the_config_of_the_readme_is_valid(tmp_path: Path):
    """Every key is known, and what it leaves out has a default."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    config = tmp_path / "billing.yaml"
    config.write_text(text, encoding="utf-8")
    assert load_config(config).registry.model_name == "billing"
