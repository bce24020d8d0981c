"""Episodes of one reply."""

from __future__ import annotations

from dataclasses import replace

from grpo.environments.environment import Environment, EnvironmentState, StepResult
from grpo.messages import Message
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Outcome


class SingleTurnEnvironment(Environment):
    """Another environment, whose episodes end with the agent's first turn."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.tools, self.system_prompt = environment.tools, environment.system_prompt
        self.scenarios = environment.scenarios

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """See the other environment."""
        return await self.environment.reset(scenario, seed=seed)

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """What the reply did to the world; nobody answers it."""
        result = await self.environment.step(state, action)
        return replace(result, state=replace(result.state, done=True), response=None, terminated=True, truncated=False)

    async def check(self, scenario: Scenario) -> None:
        """See the other environment."""
        await self.environment.check(scenario)

    def verify(self, state: EnvironmentState) -> Outcome | None:
        """See the other environment."""
        return self.environment.verify(state)
