"""Adapter of the package `verifiers`: its tasksets as environments, with their own tools and rewards.

Covered are tasks of a prompt, replies and tool calls. Their tool servers run in this process. The weighted sum of their
rewards is the reward of the environment. Not covered, and refused by name, are programs of their own (`vf.Env`), tasks
that a simulated user opens, containers, pictures, and hooks that need a runtime.

https://github.com/PrimeIntellect-ai/verifiers, version 0.4
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from grpo.environments.environment import Environment, EnvironmentState, StepResult, episode_id
from grpo.environments.scenario_sampler import ScenarioSampler
from grpo.errors import ConfigError, DataError
from grpo.messages import Message, Tool
from grpo.scenario import Scenario
from grpo.scenarios.readers.verifiers import bounded, task_id, task_prompt, task_scenario
from grpo.trajectories import Outcome

# after the import of the scenarios, because its error names the extra
import verifiers.v1 as vf  # isort: skip
from verifiers.v1.state import state_cls  # isort: skip
from grpo.environments.verifiers_tools import ServedTools, arguments_text  # isort: skip


class VerifiersEnvironment(Environment):
    """Environment with one task of a taskset per episode, and the tools of the taskset and of its tasks.

    `scenarios` are the tasks, for a rollout. An episode ends with the first reply without a tool call, and is cut off
    after `max_turns` turns of the agent. Raises `ConfigError` if the taskset is endless, or if its tool servers or
    judges cannot run here. Raises `DataError` if a task needs what is not covered, or if two tasks have the same id.
    """

    def __init__(
        self, taskset: vf.Taskset[Any, Any], *, max_turns: int = 10, success_reward: float | None = None
    ) -> None:
        self._tasks = _tasks_by_id(taskset)
        self._sampler = ScenarioSampler(map(_scenario, self._tasks.values()), shuffled=True)
        self.scenarios = self._sampler.scenarios
        self.max_turns = max_turns
        self.success_reward = success_reward
        self._shared = ServedTools(taskset.toolsets(taskset.config))
        self.tools: tuple[Tool, ...] = ()
        for number, task in enumerate(self._tasks.values()):
            offered = (*self._shared.tools, *_task_tools(task).tools)
            if number and offered != self.tools:
                raise DataError(
                    f"task {task_id(task)} has other tools than the first task, but a run shows the same tools in all "
                    "tasks. Use tasks with the same tools"
                )
            self.tools = offered

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Show the task's prompt."""
        scenario = self._sampler.sample(seed) if scenario is None else scenario
        await self.check(scenario)
        task = self._tasks[scenario.id]
        own = _task_tools(task)
        await self._shared.set_up()
        await own.set_up(task.data)
        return EnvironmentState(
            scenario=scenario,
            episode_id=episode_id(scenario, seed),
            context=scenario.context,
            history=tuple(m for m in task_prompt(task) if m.role != "system"),
            metadata={"state": state_cls(type(task))(), "tools": own},
        )

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Execute the tool calls. A reply without a call ends the episode."""
        state = state.after(action, turn_count=state.turn_count + 1)
        if not action.tool_calls and not action.malformed:
            return StepResult(state=state.after(done=True), response=None, terminated=True)
        results: list[str] = []
        for call in action.tool_calls:
            served = next((tools for tools in (self._shared, state.metadata["tools"]) if tools.has(call.name)), None)
            known = ", ".join(tool.name for tool in self.tools) or "none"
            result = f"Unknown tool: {call.name}; there are {known}"
            results.append(result if served is None else await served.call(call, state.metadata["state"]))
        if action.malformed:
            results.append(action.malformed)
        response = Message(role="tool", content="\n".join(results))
        cut = state.turn_count >= self.max_turns
        return StepResult(state=state.after(response, done=cut), response=response, truncated=cut)

    async def conclude(self, state: EnvironmentState, cut_off: Message | None = None) -> Outcome:
        """Score the conversation by the task's rewards. The outcome's state has the single rewards and metrics."""
        if cut_off is not None:
            state = state.after(cut_off)
        task = self._tasks[state.scenario.id]
        trace = _trace(task, state)
        await task.score(trace)
        rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        saved = {"rewards": rewards, "metrics": dict(trace.metrics)}
        return Outcome.of_reward(float(trace.reward), success_reward=self.success_reward, state=saved)

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool:
        """True if there is a `success_reward`."""
        return self.success_reward is not None

    async def check(self, scenario: Scenario) -> None:
        """Refuse a scenario that is not a task of this taskset."""
        if scenario.id not in self._tasks:
            raise DataError(f"scenario {scenario.id} is not a task of this taskset. Use the environment's scenarios")


def _tasks_by_id(taskset: vf.Taskset[Any, Any]) -> dict[str, vf.Task[Any, Any, Any]]:
    """Tasks of a taskset by the id of their scenario. Raises `DataError` if two have the same id."""
    tasks: dict[str, vf.Task[Any, Any, Any]] = {}
    for number, task in enumerate(bounded(taskset), start=1):
        if (earlier := tasks.setdefault(task_id(task), task)) is not task:
            first = [*tasks].index(task_id(task)) + 1
            raise DataError(
                f"tasks {first} and {number} of taskset {type(taskset).__name__} have the id {task_id(task)} both "
                f"(types {type(earlier).__name__} and {type(task).__name__}). Give each task an id of its own"
            )
    return tasks


def _check_covered(task: vf.Task[Any, Any, Any]) -> None:
    """Raise `DataError` for a task that needs more than replies and tools."""
    kind = type(task)
    judges = _plugged_judges(task)
    needs = {
        "stop conditions": bool(task.hooks("stop")),
        "a container": kind.NEEDS_CONTAINER,
        "a runtime for setup": kind.setup is not vf.Task.setup,
        "a runtime for finalize": kind.finalize is not vf.Task.finalize,
        "a runtime for a reward": any(map(_needs_runtime, task.hooks("reward"))),
        "a runtime for a judge": any(_needs_runtime(judge.score) for judge in judges),
        "a judge with a score": any(type(judge).score is vf.Judge.score for judge in judges),
    }
    missing = [name for name, needed in needs.items() if needed]
    if missing:
        raise DataError(f"task {task_id(task)} needs {', '.join(missing)}, which is not supported. Leave the task out")


def _needs_runtime(function: Callable[..., Any]) -> bool:
    """Return True if a function cannot be called without a runtime, because scoring would leave it out."""
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is parameter.empty


def _plugged_judges(task: vf.Task[Any, Any, Any]) -> list[vf.Judge[Any, Any]]:
    """Judges that the settings of the task name. Raises `ConfigError` if one cannot be made."""
    try:
        judges: list[vf.Judge[Any, Any]] = task.plugged_judges()
    except (ImportError, AttributeError, TypeError, ValueError, OSError) as error:
        names = ", ".join(judge.id for judge in task.config.judges)
        raise ConfigError(
            f"task {task_id(task)}: its judges ({names}) cannot be made ({type(error).__name__}: {error}). Correct "
            "args.task.judges"
        ) from error
    return judges


def _scenario(task: vf.Task[Any, Any, Any]) -> Scenario:
    _check_covered(task)
    return task_scenario(task)


def _task_tools(task: vf.Task[Any, Any, Any]) -> ServedTools:
    return ServedTools(task.toolsets(task.config))


def _trace(task: vf.Task[Any, Any, Any], state: EnvironmentState) -> vf.Trace[Any, Any, Any]:
    """Trace of the conversation for the task's rewards."""
    system = [Message(role="system", content=state.context)] if state.context else []
    messages = [*system, *state.history]
    first = len(system) + sum(message.role != "system" for message in task_prompt(task))
    nodes = [
        vf.MessageNode(
            parent=k - 1 if k else None,
            message=_message(message, number=k),
            sampled=message.role == "assistant" and k >= first,
        )
        for k, message in enumerate(messages)
    ]
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        state=state.metadata["state"],
        nodes=nodes,
        is_completed=True,
        ok=True,
    )


def _message(message: Message, *, number: int) -> Any:
    """Message in the types of `verifiers`. A result names the first call of the message before it."""
    if message.role == "system":
        return vf.SystemMessage(content=message.content)
    if message.role == "user":
        return vf.UserMessage(content=message.content)
    if message.role == "tool":
        return vf.ToolMessage(tool_call_id=f"{number - 1}-0", content=message.content)
    calls = [
        vf.ToolCall(id=f"{number}-{index}", name=call.name, arguments=arguments_text(call))
        for index, call in enumerate(message.tool_calls)
    ]
    return vf.AssistantMessage(content=message.content, tool_calls=calls or None)
