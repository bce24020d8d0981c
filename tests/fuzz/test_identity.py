"""A bounded part of the simulation of users without ids."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.identity import TEMPERATURE, simulate, total
from tests.grpo.serving.chat_servers import chat_server


def test_conversations_without_ids_are_joined_and_never_guessed(tmp_path: Path) -> None:
    """100 interleaved users with four openings between them: no turn has a wrong parent, 99 % have the right one."""
    with chat_server(tmp_path) as server:
        places = simulate(server, users=100, seed=5, turns=2, temperature=TEMPERATURE)
        joined = server.service.counts.joined
    counts = total(places)
    assert counts["wrong"] == 0
    assert counts["right"] >= 0.99 * counts.total()
    assert {"first", "next", "again", "edited question", "changed reply"} == {*places}
    assert joined["fork"] > 0
    assert counts["missed"] <= joined["ambiguous"]
