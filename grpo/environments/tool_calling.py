"""Base of environments in which the agent calls tools: schemas in the context, calls, and results."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.messages import Message, Tool, ToolCall
from grpo.scenario import Expected, Scenario
from grpo.strict_json import encode
from grpo.tools import equal_values

_CALLING = (
    'Tools, one a line. Call one by <tool_call>{"name": "…", "arguments": {…}}</tool_call> alone; without a call you '
    "speak to the user."
)


_SHOWN = ("name", "description", "parameters")
"""Fields of a scenario's tool that the agent reads. Others, such as `strict`, are for other servers."""


class ToolCallingEnvironment(ConversationEnvironment):
    """Conversation in which the agent calls the tools of the environment, or if it has none, of the scenario.

    The schemas of the scenario's tools are in the context. If a tool has a `from_turn`, it is unknown until that turn
    of the user. Its schema is then at the end of the user's message, because the system prompt is already processed.
    """

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Start with the user's first turn, with the scenario's tools in the context."""
        state = await super().reset(scenario, seed=seed)
        if self.tools or not state.scenario.tools:
            return state
        lines = (state.context, _CALLING, *self._schemas(state.scenario, turn=0))
        return state.after(context="\n".join(filter(None, lines)))

    @abstractmethod
    async def _execute(self, state: EnvironmentState, call: ToolCall) -> tuple[EnvironmentState, Any]:
        """State after one call, and its result."""

    def _is_complete(self, state: EnvironmentState) -> bool:
        """Return True if the episode ends in this state after a call."""
        return False

    async def _respond(self, state: EnvironmentState, action: Message) -> StepResult:
        """Execute the tool calls, or let the user answer. A malformed call is the last and gets an error as result."""
        if not action.tool_calls and not action.malformed:
            return await self._user_turn(state)
        results: list[Any] = []
        for call in action.tool_calls:
            state, result = await self._execute(state, call)
            results.append(result)
        if action.malformed:
            results.append({"error": action.malformed})
        return self._answer(state, results[0] if len(results) == 1 else results)

    async def _user_turn(self, state: EnvironmentState) -> StepResult:
        """Let the user answer. The schemas of tools that come with this turn are appended to the message."""
        result = await super()._user_turn(state)
        lines = [] if result.response is None else self._schemas(state.scenario, turn=user_turn_index(result.state))
        if result.response is None or not lines:
            return result
        response = replace(result.response, content="\n".join((result.response.content, *lines)))
        return replace(
            result, response=response, state=replace(result.state, history=(*result.state.history[:-1], response))
        )

    def _answer(self, state: EnvironmentState, result: Any) -> StepResult:
        """Answer with a result. The episode ends if it is complete, or at the last turn."""
        done = self._is_complete(state)
        cut = not done and state.turn_count >= self.max_turns
        response = Message(role="tool", content=encode(result))
        return StepResult(
            state=state.after(response, done=done or cut), response=response, terminated=done, truncated=cut
        )

    def _other_state(self, state: EnvironmentState) -> dict[str, Any]:
        """See `ConversationEnvironment._other_state`, and the tools that the agent has so far."""
        turn = user_turn_index(state)
        tools = [tool["name"] for tool in state.scenario.tools if tool.get("from_turn", 0) <= turn]
        return {**super()._other_state(state), "tools": tools}

    def _available_tools(self, scenario: Scenario, *, turn: int | None = None) -> dict[str, Tool]:
        """Tools of a scenario by name: the tools available in a turn of the user, or all."""
        if self.tools:
            return {tool.name: tool for tool in self.tools}
        return {
            tool["name"]: Tool(**{key: value for key, value in tool.items() if key in _SHOWN})
            for tool in scenario.tools
            if turn is None or tool.get("from_turn", 0) <= turn
        }

    def _schemas(self, scenario: Scenario, *, turn: int) -> list[str]:
        """Schemas of the tools that come in a turn of the user, one per line."""
        if self.tools:
            return []
        new = {tool["name"] for tool in scenario.tools if tool.get("from_turn", 0) == turn}
        offered = self._available_tools(scenario, turn=turn)
        return [
            json.dumps(tool.to_template()["function"], ensure_ascii=False)
            for name, tool in offered.items()
            if name in new
        ]


def user_turn_index(state: EnvironmentState) -> int:
    """Index of the user's last turn."""
    return sum(message.role == "user" for message in state.history) - 1


def facts_communicated(expected: Expected, state: EnvironmentState) -> bool:
    """Return True if the agent's messages to the user have all expected facts."""
    replies = " ".join(m.content for m in state.history if m.role == "assistant" and not m.tool_calls).casefold()
    return all(fact.casefold() in replies for fact in expected.facts)


def calls_made(expected: Expected, state: EnvironmentState) -> bool:
    """Return True if all expected calls were made, in any order."""
    calls = [call for message in state.history for call in message.tool_calls]
    return all(any(_matches(wanted, call) for call in calls) for wanted in expected.calls)


def _matches(expected: Mapping[str, Any], call: ToolCall) -> bool:
    """Compare a call with the expected one, in all arguments or only in `compare_args`."""
    wanted = expected["arguments"]
    compared = expected.get("compare_args")
    names = {*wanted, *call.arguments} if compared is None else compared
    return call.name == expected["name"] and all(
        (name in call.arguments) == (name in wanted) and equal_values(call.arguments.get(name), wanted.get(name))
        for name in names
    )
