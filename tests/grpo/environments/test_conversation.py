from __future__ import annotations

import asyncio

import pytest

from grpo.environments.conversation import ConversationEnvironment
from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenarios.scenario import Scenario

REPLY = Message(role="assistant", content="ok")


def test_user_turn_k_is_line_k_and_the_episode_ends_with_the_script():
    """Three lines, three replies, whatever is said."""

    async def run() -> None:
        world = ConversationEnvironment(max_turns=9)
        state = await world.reset(Scenario(id="s", user_responses=("a", "b", "c")))
        for _ in range(2):
            state, _, reward, done = await world.step(state, REPLY)
            assert (reward, done) == (None, False)
        result = await world.step(state, REPLY)
        assert (result.terminated, result.truncated, result.response) == (True, False, None)
        assert [m.content for m in result.state.history if m.role == "user"] == ["a", "b", "c"]

    asyncio.run(run())


def test_a_script_longer_than_the_limit_is_cut_off():
    """Truncated, not terminated."""

    async def run() -> None:
        world = ConversationEnvironment(max_turns=1)
        state = await world.reset(Scenario(id="s", user_responses=("a", "b")))
        result = await world.step(state, REPLY)
        assert (result.terminated, result.truncated) == (False, True)

    asyncio.run(run())


def test_a_goal_without_a_script_is_refused():
    """There is no simulated user here, and none is invented."""
    with pytest.raises(DataError, match="goal but no script"):
        asyncio.run(ConversationEnvironment().reset(Scenario(id="s", goal="return a lamp")))
