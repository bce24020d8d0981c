"""A home that is copied, and then gone from its first place, by real runs and commands in processes of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo.evaluation.report import read_report
from tests.doubles import changed
from tests.e2e.commands import start
from tests.e2e.served import own_environment

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]


def _listing(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and modification time of everything in a folder, and of the folder."""
    states = {str(path): path.lstat() for path in (folder, *folder.rglob("*"))}
    return {name: (state.st_ino, state.st_size, state.st_mtime_ns) for name, state in states.items()}


def test_a_home_works_in_its_new_place_and_writes_nothing_to_the_old_one(
    desk_config: dict[str, Any], server: str, tmp_path: Path
):
    """A promoted run, whose home is copied: the copy refuses until it was told, then all stages are cache hits.

    Models, evaluation and export are those of the copy, with the first place there and when it is gone.
    """
    old, new = tmp_path / "a place" / "home", tmp_path / "another" / "Haus"
    config = changed(
        {name: value for name, value in desk_config.items() if name != "store"},
        gates=[{"kind": "length", "max_ratio": 99.0}],
        registry={"model_name": "moving"},
    )
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))

    def command(home: Path, *arguments: str) -> tuple[int, str]:
        output = tmp_path / "output.txt"
        code, printed = start(*arguments, environment=own_environment(home, server), output=output).end()
        return code, " ".join(printed.split())

    def computed(home: Path) -> dict[str, int]:
        stages = read_report(home / "short" / "report.json").stages
        return {stage.name: stage.runs - stage.cached for stage in stages if stage.runs > stage.cached}

    train = ("train", str(tmp_path / "run.yaml"))
    assert command(old, *train)[0] == 0
    shutil.copytree(old, new)
    before = _listing(old)

    refusal = f"this home was moved or copied from {old} to {new}"
    for arguments in (train, ("models",), ("train", str(tmp_path / "run.yaml"), "--dry-run")):
        code, printed = command(new, *arguments)
        assert code == 2
        assert refusal in printed
        assert "grpo migrate --moved" in printed
    assert refusal in command(new, "doctor", "--json")[1]

    assert command(new, "migrate", "--moved")[0] == 0
    assert command(new, *train)[0] == 0
    assert computed(new) == {}
    assert _listing(old) == before
    shutil.rmtree(old.parent)

    assert "models:/moving/1 candidate, champion" in command(new, "models")[1]
    assert command(new, "evaluate", str(tmp_path / "run.yaml"), "--model", "models:/moving@champion")[0] == 0
    exported = tmp_path / "exported"
    assert command(new, "export", "models:/moving@champion", str(exported))[0] == 0
    assert (exported / "model.safetensors").is_file()
    assert command(new, *train)[0] == 0
    assert computed(new) == {}
    longer = ("--set", "training.iterations=3")
    assert command(new, *train, *longer)[0] == 0
    assert computed(new)["train"] == 3, "the number of iterations is part of each update"
    assert len(json.loads(command(new, "models", "--json")[1])) == 2
    assert not old.parent.exists()
    assert "nothing to do" in command(new, "migrate", "--moved")[1]
