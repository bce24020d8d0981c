from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from grpo.errors import DataError
from grpo.messages import Message, ToolCall
from grpo.tables import read_trajectories, write_trajectories
from grpo.trajectories import Outcome, Trajectory, Turn
from tests.doubles import make_trajectory


def _written(**changes: object) -> Trajectory:
    call = Message(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments={"x": [1, "é"]}),))
    trajectory = make_trajectory(
        scenario_id="s-1",
        sample=2,
        seed=2**62 + 1,
        temperature=0.7,
        turns=(
            Turn(message=Message(role="user", content="hi"), start=0, stop=2),
            Turn(message=call, start=2, stop=4),
        ),
        token_ids=np.array([5, 6, 7, 8], dtype=np.int32),
        loss_mask=np.array([False, False, True, True]),
        sampler_logprobs=np.array([0, 0, -0.5, -1.25], dtype=np.float32),
        outcome=Outcome(success=True, checks={"end_state": True}, state={"actions": [1]}),
        turn_rewards=(0.25,),
        terminal_reward=0.5,
        breakdown={"checks": 1.0},
    )
    return replace(trajectory, **changes)


def _same(left: Trajectory, right: Trajectory) -> bool:
    arrays = ("token_ids", "loss_mask", "sampler_logprobs")
    rest = {name: None for name in arrays}
    return (
        all(np.array_equal(getattr(left, n), getattr(right, n)) for n in arrays)
        and replace(left, **{n: np.zeros(0) for n in rest}).turns
        == replace(right, **{n: np.zeros(0) for n in rest}).turns
    )


def test_a_trajectory_survives_parquet(tmp_path: Path):
    """Everything comes back: tokens, calls, outcome, rewards, and None as None."""
    failed = _written(stop="failed", error="boom", outcome=None, terminal_reward=None, turn_rewards=(), sample=3)
    path = tmp_path / "t.parquet"
    assert write_trajectories(path, [_written(), failed], provenance={"policy": "p"}) == 2
    first, second = read_trajectories(path)
    assert _same(first, _written())
    assert first.total_reward == 0.75
    assert first.outcome == _written().outcome
    assert (second.stop, second.error, second.outcome, second.total_reward) == ("failed", "boom", None, None)


def test_the_same_trajectories_are_the_same_bytes(tmp_path: Path):
    """Parquet is content-addressed, so writing is deterministic."""
    for name in ("a", "b"):
        write_trajectories(tmp_path / name, [_written()], provenance={})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_truncated_file_is_an_error_that_names_it(tmp_path: Path):
    """Half a Parquet file is not an empty one."""
    path = tmp_path / "t.parquet"
    write_trajectories(path, [_written()], provenance={})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"t\.parquet.*truncated"):
        list(read_trajectories(path))


def test_another_schema_version_is_refused(tmp_path: Path):
    """A file of another layout is not read as this one."""
    path = tmp_path / "t.parquet"
    write_trajectories(path, [_written()], provenance={})
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"schema_version": "0"}), path)
    with pytest.raises(DataError, match="version 0"):
        list(read_trajectories(path))


def test_columns_whose_lengths_disagree_are_refused():
    """Three tokens with four log-probabilities name the scenario and the sample."""
    with pytest.raises(DataError, match=r"scenario s-1 sample 2.*lengths 3, 4, 4"):
        _written(token_ids=np.zeros(3, dtype=np.int32))


def test_a_reward_that_is_not_finite_is_refused():
    """NaN is not a reward; a failed reward is None."""
    with pytest.raises(DataError, match="nan is not finite"):
        _written(terminal_reward=float("nan"))
