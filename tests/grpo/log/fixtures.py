"""Records of a serving log by hand."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from grpo.log.folder import SEGMENTS
from grpo.log.lines import encode
from grpo.log.records import Feedback, Record, ServedTurn
from grpo.log.segments import Segment, make_folder
from grpo.messages import Message
from grpo.trajectories import Turn

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def turn(name: str, parent: str | None = None, **changes: Any) -> ServedTurn:
    """A question and its reply, two tokens each, after two tokens for each letter of the ids before."""
    start = 0 if parent is None else changes.pop("start", 4)
    made = ServedTurn(
        id=name,
        request_id=f"request-{name}",
        conversation_id="c",
        parent=parent,
        time=NOON + timedelta(minutes=ord(name[-1]) - ord("a")),
        status="answered",
        reason="stop",
        model="desk/1",
        policy_hash="policy",
        renderer_hash="renderer",
        turns=(
            Turn(message=Message(role="user", content=f"Question {name}?"), start=start, stop=start + 2),
            Turn(message=Message(role="assistant", content=f"Answer {name}."), start=start + 2, stop=start + 4),
        ),
        token_ids=np.asarray([1, 2, 3, 4], np.int32),
        loss_mask=np.asarray([False, False, True, True]),
        sampler_logprobs=np.asarray([0, 0, -0.1, np.nan], np.float32),
        temperature=1.0,
        seed=7,
        latency_s=0.5,
        consent="training",
        licence="own",
    )
    return replace(made, **changes)


def feedback(name: str, minutes: int = 60, **changes: Any) -> Feedback:
    """Feedback on conversation c an hour after its first turn; a correction may be given as a text."""
    if isinstance(text := changes.get("correction"), str):
        changes["correction"] = Message(role="assistant", content=text)
    time, scopes = NOON + timedelta(minutes=minutes), ("feedback", "outcomes")
    return replace(Feedback(id=name, time=time, conversation_id="c", scopes=scopes), **changes)


def write_segment(folder: Path, *records: Record, damage: bytes = b"") -> None:
    """Write a segment that no process compacts, and a damaged line at its end."""
    make_folder(folder / SEGMENTS)
    segment = Segment(folder, os.fdatasync)
    segment.write(b"".join(encode(record) for record in records) + damage)
    segment.close()
