from __future__ import annotations

from concurrent.futures import BrokenExecutor

import pytest
from prefect.states import State, StateType

from grpo.errors import GRPOError, NoEffect
from grpo_tasks.stage import is_transient


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
    assert is_transient(None, None, state) is again  # type: ignore[arg-type]
