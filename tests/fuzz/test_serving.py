"""A bounded part of the server's fuzzing: every kind of request, some mutated ones each."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.server_process import FRAME_BYTES
from tests.fuzz.serving import TARGETS, fuzz_all
from tests.grpo.serving.chat_servers import chat_server


def test_no_request_makes_the_server_fail_or_hang(tmp_path: Path) -> None:
    """40 of each kind, fixed seed: answered or refused, and nothing is left of them."""
    with chat_server(tmp_path, frame_bytes=FRAME_BYTES) as server:
        tallies = fuzz_all(server, requests=40 * len(TARGETS), seed=13)
    assert [line for tally in tallies for line in (*tally.faults, *tally.hangs)] == []
    assert all(tally.answers["4"] > 3 for tally in tallies if tally.name in TARGETS)
    assert all(tally.answers["2"] > 3 for tally in tallies if tally.name not in ("operations", "paths", "afterwards"))
