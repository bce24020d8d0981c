from __future__ import annotations

import re
from pathlib import Path

import pytest
from prefect import flow

from grpo import progress
from grpo_tasks.execution import retries
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import uncached_stage


def test_a_stage_waits_for_what_it_needs_and_says_so(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A store that is away for two tries: the third has the result; each pause and its cause are reported."""
    monkeypatch.setattr(retries, "PAUSES_S", (0.02, 0.01, 0.01))
    tries: list[int] = []
    reported: list[str] = []

    def reading(store: str) -> StageResult:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("http://store does not answer")
        return StageResult()

    @flow
    def run() -> StageResult:
        return uncached_stage(reading).task(store=str(tmp_path))

    with progress.observed(lambda stage, *_: reported.append(stage)):
        run()
    assert len(tries) == 3
    assert [re.sub(r" \(.*", "", text) for text in reported] == [
        f"reading is tried again in {pause:g} s: ConnectionError: http://store does not answer"
        for pause in (0.02, 0.01)
    ]


@uncached_stage
def shouting(store: str) -> StageResult:
    """A stage whose user code raises an error that clears the terminal."""
    raise ValueError("\x1b[2Jgone", store)


def test_escape_sequences_of_an_exception_do_not_reach_prefect(tmp_path: Path):
    """What the task raises is what Prefect writes into its database, its logs and the terminal."""
    with pytest.raises(ValueError, match=r"\\\\x1b\[2Jgone") as caught:
        shouting.task.fn(store=str(tmp_path))
    assert caught.value.args == ("\\x1b[2Jgone", str(tmp_path))
