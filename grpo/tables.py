"""Trajectories in Parquet and JSON: one row per trajectory, token columns as lists of equal length."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from grpo.data_errors import check_is_file
from grpo.errors import DataError
from grpo.messages import Message, Role, ToolCall
from grpo.strict_json import NotStrictJSON, encode
from grpo.trajectories import Branch, Outcome, PolicySpan, Stop, Trajectory, Turn

SCHEMA_VERSION = "8"
_READABLE = ("6", "7", SCHEMA_VERSION)
"""Version 7 has no `branch`: each of its episodes was played from its start. Version 6 has no `policy_spans` either:
one policy generated each of its trajectories."""
_ROWS = 512

TURN = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("tool_calls", pa.string()),
        ("malformed", pa.string()),
        ("start", pa.int32()),
        ("stop", pa.int32()),
    ]
)
_OUTCOME = pa.struct(
    [
        ("success", pa.bool_()),
        ("checks", pa.map_(pa.string(), pa.bool_())),
        ("state", pa.string()),
        ("unjudged", pa.list_(pa.string())),
        ("reward", pa.float64()),
    ]
)
_BRANCH = pa.struct([("sample", pa.int32()), ("tokens", pa.int32())])
_POLICY_SPAN = pa.struct([("policy_hash", pa.string()), ("start", pa.int32())])
TOKEN_COLUMNS = [
    ("token_ids", pa.list_(pa.int32())),
    ("loss_mask", pa.list_(pa.bool_())),
    ("sampler_logprobs", pa.list_(pa.float32())),
]
SCHEMA = pa.schema(
    [
        ("scenario_id", pa.string()),
        ("scenario_hash", pa.string()),
        ("category", pa.string()),
        ("difficulty", pa.string()),
        ("sample", pa.int32()),
        ("seed", pa.uint64()),
        ("policy_hash", pa.string()),
        ("renderer_hash", pa.string()),
        ("temperature", pa.float64()),
        ("turns", pa.list_(TURN)),
        *TOKEN_COLUMNS,
        ("stop", pa.string()),
        ("error", pa.string()),
        ("outcome", _OUTCOME),
        ("turn_rewards", pa.list_(pa.float64())),
        ("turn_states", pa.list_(pa.string())),
        ("terminal_reward", pa.float64()),
        ("breakdown", pa.map_(pa.string(), pa.float64())),
        ("reward_metadata", pa.string()),
        ("policy_spans", pa.list_(_POLICY_SPAN)),
        ("branch", _BRANCH),
    ]
)


def write_trajectories(path: Path, trajectories: Iterable[Trajectory], *, provenance: Mapping[str, str]) -> int:
    """Write trajectories in row groups with `provenance` in the file's metadata. Returns their number."""
    metadata = {"schema_version": SCHEMA_VERSION, **provenance}
    count = 0
    with pq.ParquetWriter(path, SCHEMA.with_metadata(metadata), compression="zstd") as writer:
        batch: list[dict[str, Any]] = []
        for trajectory in trajectories:
            batch.append(_row(trajectory))
            count += 1
            if len(batch) == _ROWS:
                writer.write_table(pa.Table.from_pylist(batch, schema=writer.schema))
                batch = []
        if batch:
            writer.write_table(pa.Table.from_pylist(batch, schema=writer.schema))
    return count


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file. Raises `DataError` with the cause."""
    check_is_file(path)
    try:
        return pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise DataError(f"no Parquet file at {path}") from error
    except (pa.ArrowException, OSError, ValueError) as error:  # names of columns may not be UTF-8
        raise DataError(f"{path} is not a readable Parquet file (truncated?): {error}") from error


def open_checked(path: Path) -> pq.ParquetFile:
    """Open a Parquet file of which each page is compared with its checksum when it is read. Raises `DataError`."""
    open_parquet(path)
    return pq.ParquetFile(path, page_checksum_verification=True)


def read_provenance(path: Path) -> dict[str, str]:
    """The `provenance` with which trajectories were written. Raises `DataError` if the file cannot be read."""
    metadata = open_parquet(path).schema_arrow.metadata or {}
    return {name.decode(): value.decode() for name, value in metadata.items()}


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Read trajectories, one row group at a time.

    Raises `DataError` if the file is truncated or has another schema version, or if lengths of columns disagree.
    """
    file = open_parquet(path)
    version = (file.schema_arrow.metadata or {}).get(b"schema_version", b"none").decode()
    if version not in _READABLE:
        raise DataError(
            f"{path} has trajectory schema version {version}, but this release reads {', '.join(_READABLE)}. Repeat "
            "the rollout, or use the release that wrote the file"
        )
    light_columns = [name for name in file.schema_arrow.names if name not in dict(TOKEN_COLUMNS)]
    for batch in file.iter_batches(batch_size=_ROWS):
        columns = {name: batch.column(name) for name, _ in TOKEN_COLUMNS}
        light = batch.select(light_columns).to_pylist()
        for index, row in enumerate(light):
            row["token_ids"] = columns["token_ids"][index].values.to_numpy(zero_copy_only=False)
            row["loss_mask"] = columns["loss_mask"][index].values.to_numpy(zero_copy_only=False)
            row["sampler_logprobs"] = columns["sampler_logprobs"][index].values.to_numpy(zero_copy_only=False)
            yield _trajectory(row)


def read_all(paths: Sequence[Path]) -> list[Trajectory]:
    """All trajectories of these files, in order."""
    return [trajectory for path in paths for trajectory in read_trajectories(path)]


def dumps(trajectory: Trajectory) -> str:
    """Serialize a trajectory as one line of JSON, without loss."""
    row = _row(trajectory)
    return json.dumps({name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()})


def loads(text: str) -> Trajectory:
    """Parse a trajectory written by `dumps`.

    Raises `DataError` with the name of a missing, unknown or mistyped field.
    """
    try:
        return _trajectory(_Row.model_validate_json(text).model_dump())
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"])) or "trajectory"
        raise DataError(f"{place}: {problem['msg']}, got {problem['input']!r:.80}") from error


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _TurnRow(_Strict):
    role: Role
    content: str
    tool_calls: str | None
    malformed: str | None
    start: int = Field(ge=0)
    stop: int = Field(ge=0)

    @field_validator("tool_calls")
    @classmethod
    def _check_calls(cls, text: str | None) -> str | None:
        if text is not None:
            TypeAdapter(list[tuple[str, dict[str, Any]]]).validate_json(text)
        return text


class _OutcomeRow(_Strict):
    success: bool | None
    checks: list[tuple[str, bool]]
    state: str
    unjudged: list[str]
    reward: float | None

    @field_validator("state")
    @classmethod
    def _check_state(cls, text: str) -> str:
        TypeAdapter(dict[str, Any]).validate_json(text)
        return text


class _PolicySpanRow(_Strict):
    policy_hash: str
    start: int = Field(ge=0)


class _BranchRow(_Strict):
    sample: int = Field(ge=0)
    tokens: int = Field(ge=1)


class _Row(_Strict):
    """`SCHEMA` for JSON."""

    scenario_id: str
    scenario_hash: str
    category: str
    difficulty: str
    sample: int
    seed: int = Field(ge=0, lt=2**64)
    policy_hash: str
    renderer_hash: str
    temperature: float
    turns: list[_TurnRow]
    token_ids: list[Annotated[int, Field(ge=0, lt=2**31)]]
    loss_mask: list[bool]
    sampler_logprobs: list[float]
    stop: Stop
    error: str | None
    outcome: _OutcomeRow | None
    turn_rewards: list[float]
    turn_states: list[str]
    terminal_reward: float | None
    breakdown: list[tuple[str, float]]
    reward_metadata: str
    policy_spans: list[_PolicySpanRow] = []
    branch: _BranchRow | None = None

    @field_validator("reward_metadata")
    @classmethod
    def _check_reward_metadata(cls, text: str) -> str:
        TypeAdapter(dict[str, Any]).validate_json(text)
        return text


def _row(trajectory: Trajectory) -> dict[str, Any]:
    outcome, branch = trajectory.outcome, trajectory.branch
    return {
        "scenario_id": trajectory.scenario_id,
        "scenario_hash": trajectory.scenario_hash,
        "category": trajectory.category,
        "difficulty": trajectory.difficulty,
        "sample": trajectory.sample,
        "seed": trajectory.seed,
        "policy_hash": trajectory.policy_hash,
        "renderer_hash": trajectory.renderer_hash,
        "temperature": trajectory.temperature,
        "turns": turns_to_rows(trajectory.turns),
        "token_ids": trajectory.token_ids,
        "loss_mask": trajectory.loss_mask,
        "sampler_logprobs": trajectory.sampler_logprobs,
        "stop": trajectory.stop,
        "error": trajectory.error,
        "outcome": None
        if outcome is None
        else {
            "success": outcome.success,
            "checks": list(outcome.checks.items()),
            "state": _json(outcome.state, f"{trajectory.place}: the state of its outcome"),
            "unjudged": list(outcome.unjudged),
            "reward": outcome.reward,
        },
        "turn_rewards": list(trajectory.turn_rewards),
        "turn_states": list(trajectory.turn_states),
        "terminal_reward": trajectory.terminal_reward,
        "breakdown": list(trajectory.breakdown.items()),
        "reward_metadata": _json(dict(trajectory.reward_metadata), f"{trajectory.place}: metadata of its reward"),
        "policy_spans": [{"policy_hash": span.policy_hash, "start": span.start} for span in trajectory.policy_spans],
        "branch": None if branch is None else {"sample": branch.sample, "tokens": branch.tokens},
    }


def _trajectory(row: dict[str, Any]) -> Trajectory:
    outcome = row["outcome"]
    return Trajectory(
        **{
            **row,
            "turns": turns_from_rows(row["turns"]),
            "token_ids": np.asarray(row["token_ids"], dtype=np.int32),
            "loss_mask": np.asarray(row["loss_mask"], dtype=np.bool_),
            "sampler_logprobs": np.asarray(row["sampler_logprobs"], dtype=np.float32),
            "outcome": None
            if outcome is None
            else Outcome(
                success=outcome["success"],
                checks=dict(outcome["checks"]),
                state=json.loads(outcome["state"]),
                unjudged=tuple(outcome["unjudged"]),
                reward=outcome["reward"],
            ),
            "turn_rewards": tuple(row["turn_rewards"]),
            "turn_states": tuple(row["turn_states"]),
            "breakdown": dict(row["breakdown"]),
            "reward_metadata": json.loads(row["reward_metadata"]),
            "policy_spans": tuple(PolicySpan(**span) for span in row.get("policy_spans", ())),
            "branch": None if row.get("branch") is None else Branch(**row["branch"]),
        }
    )


def _json(value: Any, what: str) -> str:
    try:
        return encode(value)
    except NotStrictJSON as error:
        raise DataError(f"{what} cannot be written as JSON: it is {error}") from error


def turns_to_rows(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """Rows of the type `TURN`."""
    return [
        {
            "role": turn.message.role,
            "content": turn.message.content,
            "tool_calls": calls_to_json(turn.message.tool_calls),
            "malformed": turn.message.malformed,
            "start": turn.start,
            "stop": turn.stop,
        }
        for turn in turns
    ]


def turns_from_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[Turn, ...]:
    """Turns of the rows written by `turns_to_rows`."""
    return tuple(
        Turn(
            message=Message(
                role=row["role"],
                content=row["content"],
                tool_calls=calls_from_json(row["tool_calls"]),
                malformed=row["malformed"],
            ),
            start=row["start"],
            stop=row["stop"],
        )
        for row in rows
    )


def calls_to_json(calls: tuple[ToolCall, ...]) -> str | None:
    """Serialize tool calls as `[[name, arguments], …]`, a repaired one with the reason, or None if there are none."""
    rows = [[call.name, dict(call.arguments), *([call.repaired] if call.repaired else [])] for call in calls]
    return _json(rows, "a tool call") if calls else None


def calls_from_json(text: str | None) -> tuple[ToolCall, ...]:
    """Parse the calls written by `calls_to_json`."""
    rows = json.loads(text or "[]")
    return tuple(ToolCall(name=row[0], arguments=row[1], repaired=(*row[2:], None)[0]) for row in rows)
