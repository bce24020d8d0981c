"""Scripted users: user turn k is `user_responses[k]`, and the episode ends with the script."""

from __future__ import annotations

from grpo.environments.environment import Environment, EnvironmentState, StepResult
from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenarios.scenario import Scenario


class ConversationEnvironment(Environment):
    """Plays a script at the agent; there is no world to verify, so rewards judge the words alone."""

    def __init__(self, *, system_prompt: str = "", max_turns: int = 4) -> None:
        self.system_prompt = system_prompt
        self.max_turns = max_turns

    async def reset(self, scenario: Scenario, *, seed: int | None = None) -> EnvironmentState:
        """The user says the first line of the script."""
        if not scenario.user_responses:
            raise DataError(
                f"scenario {scenario.id} has a goal but no script; the conversation environment plays user_responses"
            )
        return EnvironmentState(scenario=scenario, history=(Message(role="user", content=scenario.user_responses[0]),))

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """The user says the next line; after the last one the episode has ended, at `max_turns` it is cut off."""
        turns = state.turn_count + 1
        script = state.scenario.user_responses
        if turns >= len(script):
            return StepResult(state=state.after(action, turn_count=turns, done=True), response=None, terminated=True)
        if turns >= self.max_turns:
            return StepResult(state=state.after(action, turn_count=turns, done=True), response=None, truncated=True)
        response = Message(role="user", content=script[turns])
        return StepResult(state=state.after(action, response, turn_count=turns), response=response)

    def verify(self, state: EnvironmentState) -> None:
        """Nothing can be verified."""
        return None
