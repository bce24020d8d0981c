"""Tasks: the agent acts on a world by tools, and what counts is the state that it leaves behind."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo.environments.conversation import ConversationEnvironment, TurnReward
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.environments.scenario_sampler import ScenarioLike
from grpo.environments.users.user import User
from grpo.environments.worlds.world import Function, ToolError, World, describe_function
from grpo.errors import ConfigError, DataError
from grpo.messages import Message, Tool, ToolCall
from grpo.scenarios.scenario import Scenario
from grpo.tools import argument_error
from grpo.trajectories import Outcome

Criterion = Callable[[Mapping[str, Any]], bool]
"""Whether a state of the world is as it should be."""

_JUDGED = ("DB", "COMMUNICATE", "ACTION")
"""Parts of a scenario's success that are judged here."""
_CALLING = (
    'Tools, one a line. Call one by <tool_call>{"name": "…", "arguments": {…}}</tool_call> alone; without a call you '
    "speak to the user."
)


class TaskEnvironment(ConversationEnvironment):
    """A user who wants something done, tools to do it with, and success judged by the final state.

    Tools are functions (state, **arguments) → (new state, result) of your own, or those of `worlds`, of which a
    scenario offers the ones that its `tools` name. A call is checked against the tool's schema first; what is wrong
    with it, and what a function refuses, becomes a result that the model sees. A tool with a `from_turn` is unknown
    until that turn of the user, whose message ends with its schema: the system prompt, which was read, stays.

    Success is what the `criteria` say of the state; they end the episode as soon as all of them hold. Without
    criteria the scenario says it, by the parts of `expected.basis`:

        DB             each part of the state that `expected.state` names must equal it; where it names none, the whole
                       state must equal the one that `expected.calls` lead to, and in worlds whose answers count the
                       answers to these calls must have been seen
        COMMUNICATE    `expected.facts` must have been told
        ACTION         `expected.calls` must have been made, with the same arguments or those of `compare_args`
        NL_ASSERTION, ENV_ASSERTION    not judged here, and success is None

    What a state keeps under names that begin with `_` is not judged.
    """

    def __init__(
        self,
        scenarios: Iterable[ScenarioLike] = (),
        max_turns: int = 10,
        reward_fn: TurnReward | None = None,
        randomize_scenarios: bool = True,
        *,
        functions: Sequence[Function] = (),
        criteria: Mapping[str, Criterion] | None = None,
        worlds: Sequence[World] = (),
        system_prompt: str = "",
        user: User | None = None,
    ) -> None:
        super().__init__(scenarios, max_turns, reward_fn, randomize_scenarios, system_prompt=system_prompt, user=user)
        if bool(functions) == bool(worlds):
            raise ConfigError("a task needs tools: give either functions of your own or worlds that are there")
        self.criteria = dict(criteria or {})
        self.tools = tuple(map(describe_function, functions))
        self._worlds = tuple(worlds) or (World(functions={function.__name__: function for function in functions}),)
        self._homes = {
            name: tuple(world for world in self._worlds if name in world.functions)
            for world in self._worlds
            for name in world.functions
        }

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """The user says the first words; the world is as the scenario says. Its tools are told in the context."""
        state = await super().reset(scenario, seed=seed)
        context = state.context
        if not self.tools:
            context = "\n".join(filter(None, (context, _CALLING, *self._schemas(state.scenario, turn=0))))
        metadata = {**state.metadata, "seen": (), "wanted": await self._expect(state.scenario)}
        return state.after(context=context, world=self._begin(state.scenario), metadata=metadata)

    async def check(self, scenario: Scenario) -> None:
        """Refuse a scenario whose tools are in no world, or whose world refuses an expected call that counts."""
        await super().check(scenario)
        self._offered(scenario)
        await self._expect(scenario)

    async def _respond(self, state: EnvironmentState, action: Message) -> StepResult:
        """Run the calls, or let the user answer."""
        if action.malformed:
            return self._answer(state, {"error": action.malformed})
        if not action.tool_calls:
            return await self._hear_user(state)
        offered, results = self._offered(state.scenario, turn=_user_turn(state)), []
        for call in action.tool_calls:
            world, result, _ = await self._try(state.world, offered, call)
            state = state.after(world=world, metadata={**state.metadata, "seen": (*state.metadata["seen"], result)})
            results.append(result)
        return self._answer(state, results[0] if len(results) == 1 else results)

    async def _hear_user(self, state: EnvironmentState) -> StepResult:
        """Let the user answer; tools that come with this turn stand under the words."""
        result = await super()._hear_user(state)
        lines = [] if result.response is None else self._schemas(state.scenario, turn=_user_turn(result.state))
        if result.response is None or not lines:
            return result
        response = replace(result.response, content="\n".join((result.response.content, *lines)))
        return replace(
            result, response=response, state=replace(result.state, history=(*result.state.history[:-1], response))
        )

    def _answer(self, state: EnvironmentState, result: Any) -> StepResult:
        """Show the model a result; the episode is over when the criteria hold, or at the last turn."""
        done = bool(self.criteria) and all(holds(state.world) for holds in self.criteria.values())
        cut = not done and state.turn_count >= self.max_turns
        response = Message(role="tool", content=json.dumps(result, ensure_ascii=False))
        return StepResult(
            state=state.after(response, done=done or cut), response=response, terminated=done, truncated=cut
        )

    def verify(self, state: EnvironmentState) -> Outcome:
        """Hold the final state against the criteria, or against what the scenario expects."""
        if self.criteria:
            checks = {name: bool(holds(state.world)) for name, holds in self.criteria.items()}
            return Outcome.of(checks, state=_judged(state.world))
        wanted: _Wanted = state.metadata["wanted"]
        expected, world, checks = state.scenario.expected, _judged(state.world), {}
        if "DB" in expected.basis:
            named = {part: world.get(part) for part in wanted.state} if expected.state else world
            checks["end_state"] = named == wanted.state
            if wanted.answers:
                seen = [_written(result) for result in state.metadata["seen"]]
                checks["answers_seen"] = all(answer in seen for answer in wanted.answers)
        if "COMMUNICATE" in expected.basis:
            words = " ".join(m.content for m in state.history if m.role == "assistant" and not m.tool_calls).casefold()
            checks["facts_communicated"] = all(fact.casefold() in words for fact in expected.facts)
        if "ACTION" in expected.basis:
            made = [call for message in state.history for call in message.tool_calls]
            checks["calls_made"] = all(any(_is_made(wish, call) for call in made) for wish in expected.calls)
        unjudged = tuple(part for part in expected.basis if part not in _JUDGED)
        return Outcome.of(checks, unjudged=unjudged, state=world)

    async def replay(self, scenario: Scenario) -> AsyncIterator[ReplayStep]:
        """Make the scenario's expected calls one after the other, from its beginning."""
        world: Mapping[str, Any] = self._begin(scenario)
        offered = self._offered(scenario)
        for expected in scenario.expected.calls:
            call, before = ToolCall(name=expected["name"], arguments=expected["arguments"]), world
            world, result, refused = await self._try(world, offered, call)
            changed = _judged(world) != _judged(before)
            yield ReplayStep(call=call, result=result, world=world, changed=changed, refused=refused)

    async def _expect(self, scenario: Scenario) -> _Wanted:
        """What the episode is held against: nothing here where criteria judge it."""
        if self.criteria or scenario.expected.state:
            return _Wanted(state=_judged(scenario.expected.state))
        steps = [step async for step in self.replay(scenario)]
        world = steps[-1].world if steps else self._begin(scenario)
        counted = [
            step for step in steps if step.call.name in self._homes and self._home(world, step.call.name).answers_count
        ]
        refused = next((step for step in counted if step.refused), None)
        if refused is not None:
            raise DataError(
                f"scenario {scenario.id} is not playable: its world refuses the expected call {refused.call} "
                f"({refused.result['error']}); leave it out"
            )
        answers = [step.result for step in counted if not step.changed]
        return _Wanted(state=_judged(world), answers=tuple(map(_written, answers)))

    def _offered(self, scenario: Scenario, *, turn: int | None = None) -> dict[str, Tool]:
        """The tools of a scenario by name, those that are there in a turn of the user, or all.

        Raises `DataError` where one of them exists in no world.
        """
        if self.tools:
            return {tool.name: tool for tool in self.tools}
        strangers = sorted({tool["name"] for tool in scenario.tools} - set(self._homes))
        if strangers:
            raise DataError(
                f"scenario {scenario.id} is not playable: no world has {', '.join(strangers[:5])}"
                f"{' …' if len(strangers) > 5 else ''}; leave it out"
            )
        return {
            tool["name"]: Tool(**{key: value for key, value in tool.items() if key != "from_turn"})
            for tool in scenario.tools
            if turn is None or tool.get("from_turn", 0) <= turn
        }

    def _schemas(self, scenario: Scenario, *, turn: int) -> list[str]:
        """The tools that come in a turn of the user, one line each."""
        if self.tools:
            return []
        new = {tool["name"] for tool in scenario.tools if tool.get("from_turn", 0) == turn}
        offered = self._offered(scenario, turn=turn)
        return [
            json.dumps(tool.to_template()["function"], ensure_ascii=False)
            for name, tool in offered.items()
            if name in new
        ]

    def _begin(self, scenario: Scenario) -> dict[str, Any]:
        """The world at the start: each part that the scenario's tools act on."""
        world = copy.deepcopy(scenario.world)
        homes = [self._home(world, name) for name in self._offered(scenario)]
        for home in {id(home): home for home in homes}.values():
            if home.place is None:
                world = home.begin(world)
            else:
                world[home.place] = home.begin(world.get(home.place, {}))
        return world

    def _home(self, state: Mapping[str, Any], tool: str) -> World:
        """The world of a tool: where several have one of this name, the one whose place the state has."""
        homes = self._homes[tool]
        return next((home for home in homes if home.place in state), homes[-1])

    async def _try(
        self, world: Mapping[str, Any], offered: Mapping[str, Tool], call: ToolCall
    ) -> tuple[Mapping[str, Any], Any, bool]:
        """The world after one call, the result, and whether it was refused: then the result says why."""
        try:
            return *(await self._run(world, offered, call)), False
        except ToolError as reason:
            return world, {"error": str(reason)}, True

    async def _run(
        self, world: Mapping[str, Any], offered: Mapping[str, Tool], call: ToolCall
    ) -> tuple[Mapping[str, Any], Any]:
        """The world after one call, which is made on a copy of it, and the result; `ToolError` where it is not made."""
        tool = offered.get(call.name)
        if tool is None:
            raise ToolError(f"unknown tool {call.name}; there are {', '.join(offered)}")
        wrong = argument_error(tool, call.arguments)
        if wrong is not None:
            raise ToolError(wrong)
        home = self._home(world, call.name)
        part = copy.deepcopy(dict(world) if home.place is None else world[home.place])
        returned = home.functions[call.name](part, **copy.deepcopy(dict(call.arguments)))
        part, result = await returned if inspect.isawaitable(returned) else returned
        return (part if home.place is None else {**world, home.place: part}), result


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """One expected call, made."""

    call: ToolCall
    result: Any
    world: Mapping[str, Any]
    """As it is afterwards."""
    changed: bool
    """Whether it is another one than before."""
    refused: bool
    """Whether the call was not made; the result says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    state: Mapping[str, Any]
    answers: tuple[str, ...] = ()


def _is_made(expected: Mapping[str, Any], call: ToolCall) -> bool:
    """Compare a call with the expected one, in all arguments or in those that are compared."""
    wanted = expected["arguments"]
    compared = expected.get("compare_args")
    names = {*wanted, *call.arguments} if compared is None else compared
    return call.name == expected["name"] and all(
        (name in call.arguments, call.arguments.get(name)) == (name in wanted, wanted.get(name)) for name in names
    )


def _user_turn(state: EnvironmentState) -> int:
    """The number of the user's last turn."""
    return sum(message.role == "user" for message in state.history) - 1


def _judged(state: Any) -> Any:
    """A state without what is only on the way, such as the folder that one stands in: names that begin with `_`."""
    if isinstance(state, Mapping):
        return {name: _judged(value) for name, value in state.items() if not str(name).startswith("_")}
    return [_judged(value) for value in state] if isinstance(state, (list, tuple)) else state


def _written(result: Any) -> str:
    return json.dumps(result, sort_keys=True)
