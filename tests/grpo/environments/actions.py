"""Actions of an agent on an environment, without a policy."""

from __future__ import annotations

import asyncio

from grpo.environments.environment import EnvironmentState
from grpo.environments.support_desk.desk import SupportDesk
from grpo.environments.triage.triage import TriageEnvironment
from grpo.messages import Message
from grpo.scenario import Scenario
from grpo.trajectories import Outcome


def reply(text: str) -> Message:
    """A turn of the agent without a call."""
    return Message(role="assistant", content=text)


def play(
    environment: SupportDesk | TriageEnvironment, scenario: Scenario, *actions: Message
) -> tuple[EnvironmentState, Outcome]:
    """Apply these actions in order; each but the last leaves the episode open."""

    async def run() -> tuple[EnvironmentState, Outcome]:
        state = await environment.reset(scenario)
        for action in actions:
            assert not state.done
            state = (await environment.step(state, action)).state
        return state, environment.verify(state)

    return asyncio.run(run())
