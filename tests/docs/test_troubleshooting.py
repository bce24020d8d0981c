"""docs/troubleshooting.md: the tests that it names exist, and its rewards do what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_cli.app import app
from tests.grpo.diagnosis.plants import FAILURES
from tests.places import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
TESTS = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
SETTINGS = sorted(set(re.findall(r"`((?:rollout|training|evaluation|policy)\.\w+)", PAGE)))


def test_every_symptom_names_a_test():
    """Nine symptoms, a test or two each."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "::" in line]
    assert len(rows) == 9
    assert len(TESTS) >= len(rows)


@pytest.mark.parametrize(("path", "name"), TESTS, ids=lambda part: Path(part).name)
def test_a_named_test_exists(path: str, name: str):
    """It is defined in its file."""
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_named_setting_exists(setting: str):
    """In the section that it names."""
    from grpo.config.pipeline import PipelineConfig

    section, name = setting.split(".")
    kind = PipelineConfig.model_fields[section].annotation
    assert name in kind.model_fields  # type: ignore[union-attr]


def test_the_table_of_causes_is_that_of_the_planted_failures():
    """Each cause has a row, and each row a planted failure."""
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ", PAGE, flags=re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"\w+", row)) == sorted(FAILURES)


def test_the_rewards_of_the_page_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first is exploited, exit code 3; the second is not."""
    monkeypatch.chdir(tmp_path)
    for name, text in re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, flags=re.DOTALL):
        (tmp_path / name).write_text(text)
    hacked = CliRunner().invoke(app, ["check-reward", "hacked:thorough"])
    assert hacked.exit_code == 3, hacked.output
    sound = CliRunner().invoke(app, ["check-reward", "sound:thorough"])
    assert sound.exit_code == 0, sound.output
