from __future__ import annotations

import json
import math
import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from grpo.errors import DataError
from grpo.messages import Message, ToolCall
from grpo.tables import dumps, loads, read_provenance, read_trajectories, write_trajectories
from grpo.trajectories import Branch, Outcome, PolicySpan, Trajectory, Turn
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
        turn_states=("5d0c",),
        terminal_reward=0.5,
        breakdown={"checks": 1.0},
        reward_metadata={"weights": {"checks": 1.0}, "rubric_hash": "é"},
    )
    return replace(trajectory, **changes)


def test_a_trajectory_survives_parquet(tmp_path: Path):
    """Everything comes back: tokens, calls, outcome, rewards, and None as None."""
    failed = _written(stop="failed", error="boom", outcome=None, terminal_reward=None, turn_rewards=(), sample=3)
    waiting = _written(
        outcome=Outcome.of({"end_state": True}, unjudged=("NL_ASSERTION",)), sample=4, branch=Branch(sample=2, tokens=2)
    )
    path = tmp_path / "t.parquet"
    assert write_trajectories(path, [_written(), failed, waiting], provenance={"policy": "p"}) == 3
    first, second, third = read_trajectories(path)
    assert (first, second, third) == (_written(), failed, waiting)
    assert third.success is None
    assert first.total_reward == 0.75
    assert (second.stop, second.error, second.outcome, second.total_reward) == ("failed", "boom", None, None)


def test_reward_metadata_that_is_not_json_names_its_trajectory(tmp_path: Path):
    """Metadata of a reward must be serializable."""
    with pytest.raises(DataError, match=r"scenario s-1 sample 2: metadata of its reward .*JSON"):
        write_trajectories(tmp_path / "t", [_written(reward_metadata={"model": object()})], provenance={})


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


def _text(rng: random.Random) -> str:
    return "".join(rng.choice(string.printable + 'é漢🙂\u2028\x00"\\') for _ in range(rng.randrange(12)))


def _value(rng: random.Random, depth: int = 2) -> Any:
    """Anything that JSON can hold."""
    kinds = [None, True, rng.randint(-(2**53), 2**53), rng.gauss(0, 1e9), _text(rng)]
    if depth:
        kinds += [[_value(rng, depth - 1)], {_text(rng): _value(rng, depth - 1)}]
    return rng.choice(kinds)


def _random(rng: random.Random) -> Trajectory:
    count = rng.randrange(6)
    calls = tuple(ToolCall(name=_text(rng), arguments={_text(rng): _value(rng)}) for _ in range(rng.randrange(3)))
    message = Message(
        role=rng.choice(("system", "user", "assistant", "tool")),
        content=_text(rng),
        tool_calls=calls,
        malformed=rng.choice((None, _text(rng))),
    )
    outcome = Outcome(success=rng.random() < 0.5, checks={_text(rng): True}, state={_text(rng): _value(rng)})
    return make_trajectory(
        scenario_id=_text(rng),
        sample=rng.randrange(9),
        seed=rng.randrange(2**63),
        temperature=rng.random() + 0.1,
        turns=(Turn(message=message, start=0, stop=count),) * rng.randrange(3),
        token_ids=np.array([rng.randrange(2**31) for _ in range(count)], dtype=np.int32),
        loss_mask=np.array([rng.random() < 0.5 for _ in range(count)], dtype=np.bool_),
        sampler_logprobs=np.array([rng.choice((math.nan, -rng.random() * 9)) for _ in range(count)], dtype=np.float32),
        stop=rng.choice(("terminated", "truncated", "turn_limit", "failed")),
        error=rng.choice((None, _text(rng))),
        outcome=rng.choice((None, outcome)),
        turn_rewards=tuple(rng.gauss(0, 1) for _ in range(rng.randrange(3))),
        turn_states=tuple(_text(rng) for _ in range(rng.randrange(3))),
        terminal_reward=rng.choice((None, rng.gauss(0, 1))),
        breakdown={_text(rng): rng.gauss(0, 1) for _ in range(rng.randrange(3))},
        reward_metadata={_text(rng): [_text(rng), rng.gauss(0, 1), None] for _ in range(rng.randrange(3))},
        policy_spans=tuple(
            PolicySpan(policy_hash="p" if start == 0 else _text(rng), start=start)
            for start in range(rng.choice((0, 2, 3)))
        ),
        branch=rng.choice((None, Branch(sample=rng.randrange(9), tokens=rng.randrange(1, 99)))),
    )


@pytest.mark.parametrize(("version", "missing"), [("6", ["policy_spans", "branch"]), ("7", ["branch"])])
def test_trajectories_of_earlier_schemas_lack_columns(tmp_path: Path, version: str, missing: list[str]):
    """The same rows are read as episodes that were played from their start, in version 6 by one policy each."""
    path, old = tmp_path / "new.parquet", tmp_path / "old.parquet"
    written = [_written(), _written(sample=1)]
    write_trajectories(path, written, provenance={"part": "0"})
    table = pq.read_table(path).drop_columns(missing)
    pq.write_table(table.replace_schema_metadata({"schema_version": version, "part": "0"}), old)
    assert list(read_trajectories(old)) == written
    assert read_provenance(old) == {"schema_version": version, "part": "0"}
    assert [trajectory.policies for trajectory in written] == [("p",), ("p",)]


@pytest.mark.parametrize("spans", [(("p", 3), ("q", 3)), (("q", 0), ("p", 2)), (("p", 4), ("q", 2))])
def test_spans_that_are_not_in_order_are_refused(spans: Sequence[tuple[str, int]]):
    """The first is of policy p, which the trajectory names, and each begins after the one before."""
    with pytest.raises(DataError, match="must begin at ascending tokens, with policy p"):
        _written(policy_spans=tuple(PolicySpan(policy_hash=policy, start=start) for policy, start in spans))


def test_json_round_trip_preserves_a_trajectory():
    """300 random trajectories: any text, numbers to the last bit, None as None, NaN log-probabilities as NaN."""
    rng = random.Random(5)
    for _ in range(300):
        trajectory = _random(rng)
        assert "\n" not in dumps(trajectory)
        assert loads(dumps(trajectory)) == trajectory


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("seed", "7", "seed: .*valid integer, got '7'"),
        ("loss_mask", [0, 0, 1, 1], "loss_mask.0: .*valid boolean, got 0"),
        ("token_ids", [5, 6.5, 7, 8], "token_ids.1: .*valid integer"),
        ("token_ids", [2**31, 6, 7, 8], "token_ids.0: .*less than"),
        ("stop", "done", "stop: .*'terminated', 'truncated', 'turn_limit' or 'failed'"),
        ("terminal_reward", "1", "terminal_reward: .*valid number"),
        ("turns", [{"role": "robot"}], "turns.0.role"),
        ("outcome", {"success": 1, "checks": [], "state": "{}"}, "outcome.success: .*valid boolean"),
        ("outcome", {"success": True, "checks": [], "state": "[]"}, "outcome.state"),
        ("reward_metadata", "[]", "reward_metadata"),
        ("speaker", "agent", "speaker: Extra inputs"),
        ("sampler_logprobs", [0.0], "lengths 4, 4, 1"),
    ],
)
def test_a_field_of_another_type_is_named(field: str, value: object, error: str):
    """Nothing is converted: text is not a number, and 1 is not true."""
    row = {**json.loads(dumps(_written())), field: value}
    with pytest.raises(DataError, match=error):
        loads(json.dumps(row))


def test_a_missing_field_and_invalid_json_are_named():
    """The field where one is missing, the trajectory where nothing can be read."""
    row = json.loads(dumps(_written()))
    del row["policy_hash"]
    with pytest.raises(DataError, match="policy_hash: Field required"):
        loads(json.dumps(row))
    with pytest.raises(DataError, match="trajectory: Invalid JSON"):
        loads("{")


def test_many_turns_are_written_as_they_come(tmp_path: Path):
    """10,000 trajectories of ten turns: at no time more than one row group is held, and all come back in order."""
    turns = tuple(Turn(message=Message(role="user", content=f"turn {k}"), start=0, stop=0) for k in range(10))
    path, most = tmp_path / "t.parquet", 0

    def produce() -> Iterator[Trajectory]:
        nonlocal most
        for k in range(10_000):
            if k and k % 512 == 0:
                size = path.stat().st_size
                assert size > most, "the row group before this one is not on disk"
                most = size
            yield make_trajectory(seed=k, turns=turns)

    assert write_trajectories(path, produce(), provenance={}) == 10_000
    assert pq.ParquetFile(path).num_row_groups == 20
    seeds, count = [], 0
    for trajectory in read_trajectories(path):
        seeds.append(trajectory.seed)
        count += len(trajectory.turns)
    assert (seeds, count) == (list(range(10_000)), 100_000)
