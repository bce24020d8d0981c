from __future__ import annotations

import re
from concurrent.futures import BrokenExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from prefect import flow
from prefect.states import State, StateType

from grpo import progress
from grpo.errors import GRPOError, NoEffect
from grpo_tasks import stage as stages
from grpo_tasks.results import StageResult
from grpo_tasks.stage import is_transient, uncached_stage


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ConnectionError("reset"), True),
        (ConnectionResetError("peer"), True),
        (TimeoutError("slow"), True),
        (BrokenExecutor("worker died"), True),
        (GRPOError("bad"), False),
        (NoEffect("none"), False),
        (ValueError("bug"), False),
    ],
)
def test_only_what_a_second_try_can_mend_is_retried(error: Exception, again: bool):
    """Lost connections and workers are; an error of ours or in the code is not."""
    state: State[object] = State(type=StateType.FAILED, data=error)
    tried = SimpleNamespace(name="rollout", run_count=1)
    assert is_transient(tried, tried, state) is again  # type: ignore[arg-type]


def test_a_stage_waits_for_what_it_needs_and_says_so(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A store that is away for two tries: the third has the result; each pause and its cause are reported."""
    monkeypatch.setattr(stages, "PAUSES_S", (0.02, 0.01, 0.01))
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
        f"reading in {pause:g} s again: ConnectionError: http://store does not answer" for pause in (0.02, 0.01)
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
