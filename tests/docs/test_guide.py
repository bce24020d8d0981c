"""The blocks of docs/guide.md run, in their order, as a reader would run them in one notebook."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from grpo.config.environments import EnvironmentSettings
from grpo.config.rewards import PYTHON, REWARD_NAMES, TRL
from grpo.config.rollout import RolloutSettings
from tests.places import ROOT

GUIDE = ROOT / "docs" / "guide.md"


async def _run(blocks: list[tuple[int, str]], names: dict[str, Any]) -> None:
    for line, block in blocks:
        code = compile("\n" * line + block, str(GUIDE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)  # what a notebook does with a cell
        if inspect.isawaitable(result):
            await result


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every block, from the first training to the last."""
    text = GUIDE.read_text(encoding="utf-8")
    found = re.finditer(r"```python\n(.*?)```", text, flags=re.DOTALL)
    blocks = [(text[: match.start(1)].count("\n"), match[1]) for match in found]
    assert len(blocks) >= 8
    (tmp_path / "data").symlink_to(ROOT / "data")  # so that the blocks write below another folder
    monkeypatch.chdir(tmp_path)
    asyncio.run(_run(blocks, {}))


WORDS = {
    "backend": "`backend: vllm`",
    "shards": "shards",
    "runner": "Dask, Ray",
    "informative_groups": "`informative_groups`",
    "curriculum": "curriculum",
    "trees": "`trees`",
}
"""Settings that continuous rollouts do not go with, and what the guide calls them."""


def test_the_guide_names_all_that_continuous_rollouts_refuse():
    """In the section on the mode. A setting that is refused as well needs a word here and there."""
    section = GUIDE.read_text(encoding="utf-8").split("### Asynchronous rollouts", 1)[1].split("\n## ")[0]
    settings = {"shards": 2, "runner": "dask", "informative_groups": 4, "curriculum": {}, "trees": 2}
    with pytest.raises(ValidationError, match=r"cannot be combined with") as refused:
        RolloutSettings.model_validate({"mode": "continuous", "backend": "vllm", **settings})
    faults = re.search(r"cannot be combined with (.*)\. Leave it out", str(refused.value))
    assert faults is not None
    assert [fault.split()[0] for fault in faults[1].split(", ")] == [*WORDS]
    assert [word for word in WORDS.values() if word not in section] == []


def _first_cells(heading: str) -> list[str]:
    """Names in the first column of a table."""
    table = GUIDE.read_text(encoding="utf-8").split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    return [name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_the_tables_name_every_environment_and_reward():
    """Each kind that a config may name once, and no other."""
    union = get_args(EnvironmentSettings)[0]
    kinds = [get_args(settings.model_fields["kind"].annotation)[0] for settings in get_args(union)]
    assert sorted(_first_cells("environment")) == sorted(kinds)
    assert sorted(_first_cells("reward")) == sorted([*REWARD_NAMES, PYTHON, TRL])
