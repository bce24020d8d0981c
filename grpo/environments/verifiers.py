"""Adapter of the package `verifiers`: its tasksets as environments, with their own rewards.

Covered are tasks of one reply: a prompt, the policy's answer, and the task's rewards on the trace of both. Not covered,
and refused by name: tools (separate servers there), tasks that a simulated user opens, containers, pictures, and
rewards or hooks that need a runtime.

https://github.com/PrimeIntellect-ai/verifiers, version 0.4
"""

from __future__ import annotations

import inspect
from typing import Any

from grpo.environments.environment import Environment, EnvironmentState, StepResult, episode_id
from grpo.environments.scenario_sampler import ScenarioSampler
from grpo.errors import ConfigError, DataError
from grpo.messages import Message
from grpo.scenarios.scenario import Metadata, Scenario

try:
    import verifiers.v1 as vf  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from verifiers.v1.types import content_text  # type: ignore[import-not-found,import-untyped,unused-ignore]
except ModuleNotFoundError as error:
    raise ConfigError("package verifiers is not installed; pip install 'grpo[verifiers]'") from error

_ROLES = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}


class VerifiersEnvironment(Environment):
    """Environment with one task of a taskset an episode; the reward is the weighted sum of the task's rewards.

    `scenarios` are the tasks, for a rollout. Raises `ConfigError` for a taskset that is endless or has tool servers,
    and `DataError` for a task that needs what is not covered.
    """

    def __init__(self, taskset: vf.Taskset[Any, Any]) -> None:
        if not taskset.bounded:
            raise ConfigError(f"taskset {type(taskset).__name__} is endless; bound it by take(n)")
        if taskset.toolsets(taskset.config):
            raise ConfigError(f"taskset {type(taskset).__name__} has tool servers, which are not covered here")
        self._tasks = {_id(task): task for task in taskset}
        self._sampler = ScenarioSampler(map(_scenario, self._tasks.values()), shuffled=True)
        self.scenarios = self._sampler.scenarios

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Show the task's prompt."""
        scenario = self._sampler.sample(seed) if scenario is None else scenario
        if scenario.id not in self._tasks:
            raise DataError(f"scenario {scenario.id} is not a task of this taskset; use the environment's scenarios")
        return EnvironmentState(
            scenario=scenario,
            episode_id=episode_id(scenario, seed),
            context=scenario.context,
            history=tuple(m for m in _prompt(self._tasks[scenario.id]) if m.role != "system"),
        )

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Score the reply; metrics and single rewards are in `info`."""
        state = state.after(action, turn_count=1, done=True)
        task = self._tasks[state.scenario.id]
        trace = _trace(task, state)
        await task.score(trace)
        rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        info = {"rewards": rewards, "metrics": dict(trace.metrics)}
        return StepResult(state=state, response=None, reward=float(trace.reward), terminated=True, info=info)


def _check_covered(task: vf.Task[Any, Any, Any]) -> None:
    """Raise `DataError` for a task that needs more than a reply."""
    kind = type(task)
    runtimes = [inspect.signature(hook).parameters.get("runtime") for hook in task.hooks("reward")]
    needs = {
        "tools": bool(kind.toolsets(task.config)),
        "a container": kind.NEEDS_CONTAINER,
        "a runtime for setup": kind.setup is not vf.Task.setup,
        "a runtime for finalize": kind.finalize is not vf.Task.finalize,
        "a runtime for a reward": any(runtime and runtime.default is runtime.empty for runtime in runtimes),
    }
    missing = [name for name, needed in needs.items() if needed]
    if missing:
        raise DataError(f"task {_id(task)} needs {', '.join(missing)}, which is not covered; leave it out")


def _id(task: vf.Task[Any, Any, Any]) -> str:
    return f"verifiers-{task.data.id or task.data.idx}"


def _prompt(task: vf.Task[Any, Any, Any]) -> list[Message]:
    """Messages of the task, system prompt first; the last is the user's."""
    given = task.data.prompt
    if isinstance(given, str):
        messages = [Message(role="user", content=given)]
    else:
        messages = [Message(role=message.role, content=content_text(message.content) or "") for message in given or []]
    if task.data.system_prompt:
        messages.insert(0, Message(role="system", content=task.data.system_prompt))
    if not messages or messages[-1].role != "user" or any(m.role not in _ROLES for m in messages):
        raise DataError(f"task {_id(task)}: the prompt must end with the user's message and hold no tools")
    if not isinstance(given, str) and any(not isinstance(m.content, str) for m in given or []):
        raise DataError(f"task {_id(task)}: the prompt holds more than text")
    return messages


def _scenario(task: vf.Task[Any, Any, Any]) -> Scenario:
    _check_covered(task)
    messages = _prompt(task)
    return Scenario(
        id=_id(task),
        user_responses=(messages[-1].content,),
        context="\n\n".join(message.content for message in messages if message.role == "system"),
        metadata=Metadata(source="verifiers"),
    )


def _trace(task: vf.Task[Any, Any, Any], state: EnvironmentState) -> vf.Trace[Any, Any, Any]:
    """Trace of the conversation for the task's rewards."""
    system = [Message(role="system", content=state.context)] if state.context else []
    messages = [*system, *state.history]
    nodes = [
        vf.MessageNode(
            parent=k - 1 if k else None,
            message=_ROLES[message.role](content=message.content),
            sampled=k == len(messages) - 1,
        )
        for k, message in enumerate(messages)
    ]
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
        is_completed=True,
        ok=True,
    )
