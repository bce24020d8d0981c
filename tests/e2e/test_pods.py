"""Two real servers of one log and one database behind a real haproxy."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.e2e.postgres import postgres
from tests.fuzz.pods import judge, play_with_kills, running_pods


def test_conversations_go_on_over_two_servers_that_are_killed(tmp_path: Path):
    """400 turns with kills and a new version: each in the conversation of its chat, after the turn before."""
    if shutil.which("haproxy") is None and shutil.which("haproxy", path="/usr/sbin") is None:
        pytest.skip("haproxy is not installed: apt-get install haproxy")
    with postgres() as cluster, running_pods(tmp_path / "pods", cluster, count=2) as pods:
        chats, statuses, kills, _ = asyncio.run(play_with_kills(pods, turns=400, kill_every_s=1.0))
    verdict = judge(tmp_path / "pods" / "log", chats)
    assert statuses["404"] == 0
    assert kills >= 1
    assert (verdict.answered, verdict.joined) == (400, 40)
    assert (verdict.second, verdict.wrong_tokens, verdict.versions, verdict.missing) == (0, 0, 0, 0)
