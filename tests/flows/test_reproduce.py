"""Reproduction of a version whose environment is the user's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from grpo.config.pipeline import load_config
from tests.doubles import short_run

pytestmark = pytest.mark.filterwarnings("ignore")

COUNTER = """
from pathlib import Path
from grpo.environments.support_desk.desk import SupportDesk

class Counter(SupportDesk):
    def __init__(self):
        super().__init__(max_turns=int((Path(__file__).parent / "turns.txt").read_text()))
"""


def test_files_with_the_same_content_are_not_differences(home: Path, server: str, tmp_path: Path):
    """A process that imports the environment anew, with a new file beside it; a changed file is a difference."""
    from grpo_flows.plans.reproduce import plan_reproduction
    from grpo_flows.reproduce import reproduce
    from grpo_flows.train import train

    (tmp_path / "turns.txt").write_text("4")
    (tmp_path / "reproduced_counter.py").write_text(COUNTER)
    document = short_run(
        tmp_path,
        name="reproduced",
        environment={"kind": "python", "object": "reproduced_counter:Counter"},
        scenarios={"limit": 8},
        rollout={"max_new_tokens": 24},
        training={"iterations": 1},
        registry={"model_name": "reproduced"},
    )
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump({**document, "environment": {"kind": "python", "object": "reproduced_counter:Counter"}})
    )
    version = train(load_config(tmp_path / "run.yaml")).version
    assert version is not None

    del sys.modules["reproduced_counter"]
    (tmp_path / "notes.txt").write_text("new")
    result = reproduce(version.address)
    assert (result.equal, result.differences) == (True, {})
    (tmp_path / "turns.txt").write_text("4\n")
    assert str(tmp_path / "turns.txt") in plan_reproduction(version.address).facts["differences"]
