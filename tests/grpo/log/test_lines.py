from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from grpo.errors import DataError
from grpo.log.lines import decode, encode, read_lines
from grpo.log.records import Record
from grpo.log.tables import Damage
from grpo.messages import Message, ToolCall
from grpo.scenario import Expected
from grpo.trajectories import Turn
from tests.grpo.log.fixtures import feedback, turn

CALLS = Turn(
    message=Message(
        role="assistant", content="<x>\n", tool_calls=(ToolCall(name="f", arguments={"a": [1]}),), malformed="m"
    ),
    start=0,
    stop=4,
)
RECORDS = [
    turn("a"),
    turn(
        "b",
        "a",
        status="failed",
        reason="overloaded",
        turns=(),
        token_ids=np.asarray([], np.int32),
        loss_mask=np.asarray([], np.bool_),
        sampler_logprobs=np.asarray([], np.float32),
    ),
    turn(
        "a",
        turns=(CALLS,),
        tools=({"name": "f", "parameters": {"x": 1}},),
        metadata={"category": "Größe \u2028"},
        seed=2**64 - 1,
        first_token_s=0.1,
        user="u",
        key="k",
        top_p=0.5,
        choice=1,
    ),
    feedback(
        "f",
        rating=0.5,
        comment="ok",
        correction="No.",
        success=False,
        world={"n": 1},
        turn_id="a",
        expected=Expected(calls=({"name": "refund", "arguments": {}},), reward_basis=("DB",)),
    ),
    feedback("g"),
    feedback("h", correction=replace(CALLS.message, malformed=None)),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_read_as_it_was_written(record: Record):
    """Each field, log-probabilities bit by bit; a line has one newline, at its end."""
    line = encode(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line[:-1]) == record


def test_a_log_probability_keeps_its_bits():
    """The NaN of an unknown one, and the float32 nearest to -0.1."""
    read = decode(encode(turn("a"))[:-1])
    assert read.sampler_logprobs.tobytes() == turn("a").sampler_logprobs.tobytes()


def test_a_segment_may_end_at_any_byte():
    """Complete lines are read, the rest is one torn record, or nothing while it may still be written."""
    first, second = encode(feedback("a")), encode(feedback("b"))
    for length in range(len(first), len(first) + len(second) + 1):
        content = (first + second)[:length]
        complete = [feedback("a"), feedback("b")] if length == len(first + second) else [feedback("a")]
        assert [line.content for line in read_lines(content)] == complete
        torn = [line.content for line in read_lines(content, torn=True)][len(complete) :]
        rest = length - len(first)
        expected = [Damage(line=2, bytes=rest, reason="torn record: it was not acknowledged")]
        assert torn == (expected if 0 < rest < len(second) else [])


@pytest.mark.parametrize(
    "change", [lambda byte: byte ^ 0x01, lambda byte: byte ^ 0xFF, lambda byte: 0x0A, lambda byte: 0]
)
def test_a_changed_byte_damages_its_line_and_no_other(change: Callable[[int], int]):
    """Each byte of the middle one of three records; a changed newline joins it with the next."""
    lines = [encode(feedback(name)) for name in "abc"]
    for position in range(len(lines[1])):
        content = bytearray(lines[1])
        if content[position] == (changed := change(content[position])):
            continue
        content[position] = changed
        read = [line.content for line in read_lines(lines[0] + bytes(content) + lines[2])]
        damaged = [item for item in read if isinstance(item, Damage)]
        intact = [item for item in read if not isinstance(item, Damage)]
        last = position == len(content) - 1
        assert intact == ([feedback("a")] if last else [feedback("a"), feedback("c")])
        assert [item.line for item in damaged] == ([2, 3] if changed == 0x0A else [2])
        assert damaged[0].reason == "damaged record: the checksum differs"


def test_the_end_of_each_line_is_the_start_of_the_next():
    """Damaged lines count; a snapshot ends between two records."""
    lines = [encode(feedback("a")), b"x\n", encode(feedback("b"))]
    assert [line.end for line in read_lines(b"".join(lines))] == [
        len(lines[0]),
        len(lines[0]) + 2,
        sum(map(len, lines)),
    ]


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (lambda: feedback("f", world={"n": math.nan}), "not JSON compliant"),
        (lambda: feedback("f", comment="\ud800"), "surrogates not allowed"),
        (lambda: turn("f", metadata={"n": object()}), "not JSON serializable"),
    ],
)
def test_nothing_is_written_that_could_not_be_read_back(record: Callable[[], Any], fault: str):
    """The writer learns it, with the record's id."""
    with pytest.raises(DataError, match=f"record f cannot be stored as JSON: .*{fault}"):
        encode(record())


def test_a_line_with_a_checksum_that_is_not_a_record_names_the_fault():
    """Written by another version, for example."""
    import zlib

    content = b'{"kind":"vote","time":"2026-11-20T12:00:00+00:00"}'
    [line] = read_lines(b"%08x %s\n" % (zlib.crc32(content), content))
    assert isinstance(line.content, Damage)
    assert line.content.reason == "not a record: KeyError: 'vote'"


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        (feedback("f"), "id", [7]),
        (feedback("f"), "comment", 7),
        (feedback("f"), "success", "yes"),
        (turn("a"), "conversation_id", {}),
        (turn("a"), "latency_s", "slow"),
    ],
)
def test_a_record_with_a_value_of_another_type_is_damage(record: Record, field: str, value: object):
    """Its checksum is right, and it costs itself alone: the next line is read."""
    row = json.loads(encode(record)[9:])
    content = json.dumps({**row, field: value}).encode()
    damaged, sound = read_lines(b"%08x %s\n" % (zlib.crc32(content), content) + encode(turn("b")))
    assert isinstance(damaged.content, Damage)
    assert field in damaged.content.reason
    assert sound.content == turn("b")
