"""Statistics of the serving benchmark."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from tests.benchmarks.serve_load import Generator, Load, Turn
from tests.benchmarks.serve_rows import Bar, first_token_ms, gaps_ms, last_chunk_ms, lost, tokens_per_second, worst
from tests.grpo.serving.chat_servers import chat_server


def turn(**fields: object) -> Turn:
    """A turn of 8 tokens in 4 events at 1.0, 1.5, 2.0 and 3.0 s, asked for at 0.9 s."""
    given = {"conversation": "0", "turn": 0, "kind": "short", "started": 0.9, "ended": 3.25, "status": 200, "tokens": 8}
    return Turn.model_validate({**given, "events": [1.0, 1.5, 2.0, 3.0], **fields})


def test_an_event_counts_the_tokens_of_its_turn_that_it_has():
    """In [1.5, 3): 2 events of 2 tokens, and of the turn that was cut 1 event of the others' mean, 2: 6 in 1.5 s."""
    cut = turn(tokens=0, ended=None, events=[1.25, 2.5])
    assert tokens_per_second([turn(), cut], 1.5, 3.0) == pytest.approx(4.0)


def test_latencies_are_those_of_text():
    assert first_token_ms([turn(), turn(kind="long")]) == pytest.approx([100.0])
    assert first_token_ms([turn(kind="long", turn=1)], kind="long", turn=0).size == 0
    assert gaps_ms([turn()]) == pytest.approx([500.0, 500.0, 1000.0])
    assert last_chunk_ms([turn(), turn(ended=None)]) == pytest.approx([250.0])


def test_a_refusal_is_not_a_loss():
    """Accepted requests that end with an error are lost, and those without any answer."""
    turns = [turn(), turn(status=503, error="full"), turn(error="broken"), turn(status=0, error="refused")]
    assert [one.error for one in lost(turns)] == ["broken", "refused"]


def test_a_missed_bar_is_bold():
    late = Bar(measure="TTFT", value=31, at_most=30, unit="ms")
    assert late.row() == ("TTFT", "31 ms", "at most 30 ms", "**missed**")
    assert Bar(measure="ratio", value=0.8, at_least=0.8).row() == ("ratio", "0.8", "at least 0.8", "met")
    assert not Bar(measure="nothing was measured", value=math.nan, at_most=30).met


def test_the_load_generator_plays_what_the_server_logs(tmp_path: Path):
    """Two streams of two turns: each request is a turn of the log, and the second turn goes on with the first's."""
    with chat_server(tmp_path) as server:
        key = server.headers()["Authorization"].removeprefix("Bearer ")
        load = Load(
            ports=(server.port,), model="clerk", key=key, by_id=True, seconds=1.0, lines=("Hello", "I moved."),
            streams=2, turns=2, max_tokens=3, probes=("/live",), finish=True,
        )  # fmt: skip
        played = asyncio.run(Generator(load).run())
        logged = server.turns()
    asked = [one for one in played if one.kind == "short" and one.status == 200]
    assert len(asked) == len(logged) >= 4
    assert sum(one.turn == 1 for one in asked) == sum(one.parent is not None for one in logged) > 0
    assert all(0 < one.tokens <= 3 and one.version for one in asked if one.error is None)
    assert {one.status for one in played if one.kind == "/live"} == {200}


def test_the_worst_value_is_one_that_was_not_measured():
    """`max` steps over NaN, so that a bar of three rounds would be met by two."""
    assert worst([1.0, 3.0, 2.0]) == 3.0
    assert math.isnan(worst([1.0, math.nan, 2.0]))
    assert math.isnan(worst([math.nan, 1.0]))
