"""A real run on a real disk that is full, and then has room again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from grpo.config.pipeline import PipelineConfig
from grpo.errors import StorageError
from grpo.evaluation.report import read_report
from tests.doubles import short_run

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]


def _resize(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


def test_a_run_whose_checkpoint_finds_no_room_says_so_and_goes_on_when_there_is_some(small_disk: Path, home: Path):
    """14 MB hold the base, 5.3 MB, and not its optimizer beside it, 16 MB in all; what was finished stays."""
    from grpo_flows.train import train

    config = PipelineConfig.model_validate(
        short_run(small_disk, name="full", training={"iterations": 1}, registry={"model_name": "full"})
    )
    _resize(small_disk, "14m")
    with pytest.raises(
        StorageError, match=rf"cannot write {small_disk}.*: the disk is full: free space, or write elsewhere"
    ):
        train(config)
    assert list((small_disk / "store" / ".staging").iterdir()) == []
    _resize(small_disk, "64m")
    train(config)
    cached = {stage.name: (stage.cached, stage.runs) for stage in read_report(home / "full" / "report.json").stages}
    assert cached["ingest"] == cached["load_base"] == (1, 1)
    assert cached["rollout"][0] == 1, "that of the iteration; the held-out sides are played for the first time"
    assert cached["train"] == (0, 1)
