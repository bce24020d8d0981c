"""Questions of reasoning-gym, answered in one turn or with several tries, and scored by its verifiers.

A scenario's world names the generator, its options and the index. The scenario's text is the resulting question:

    world    {"task": "chain_sum", "options": {"num_terms": 2, "seed": 0, "size": 12000}, "index": 17}
    user     State the final answer to the following arithmetic problem: 8 + 4 =
    agent    13
    user     That is not right. Try again.
    agent    12

The answer is the text between the last `<answer>` and `</answer>` of a reply, or the whole reply if it has no such
tags. The score of the last answer is the episode's reward, and 1 is a success. A task is refused if its verifier
evaluates an answer as Python, or scores a constant as right for nearly every question, see `verifiers`.

https://github.com/open-thought/reasoning-gym, version 0.1
"""

from __future__ import annotations

import copy
import functools
import json
import math
import random
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from grpo.agents.tools import call_on_thread
from grpo.environments.environment import Environment, EnvironmentState, StepResult, episode_id, world_digest
from grpo.environments.scenario_sampler import ScenarioLike, ScenarioSampler
from grpo.errors import ConfigError, DataError, install_command
from grpo.messages import Message
from grpo.scenario import Scenario
from grpo.trajectories import Outcome

try:
    import reasoning_gym
    from reasoning_gym.dataset import ProceduralDataset
    from reasoning_gym.utils import extract_answer
except ModuleNotFoundError as error:
    raise ConfigError(f"package {error.name} is not installed. Call {install_command('reasoning')}") from error

from grpo.environments.reasoning_gym.verifiers import constant_answer, evaluating_call  # isort: skip

TRY_AGAIN = "That is not right. Try again."
_making = threading.Lock()


class ReasoningGymEnvironment(Environment):
    """One question per episode, see the module. It ends with a right answer, or with answer number `max_turns`."""

    def __init__(self, scenarios: Iterable[ScenarioLike] = (), max_turns: int = 1, *, system_prompt: str = "") -> None:
        self._sampler = ScenarioSampler(scenarios, shuffled=True)
        self.scenarios = self._sampler.scenarios
        self.max_turns = max_turns
        self.system_prompt = system_prompt

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Ask the question."""
        scenario = self._sampler.sample(seed) if scenario is None else scenario
        entry = await call_on_thread(_entry, scenario)  # a task may take seconds to make
        return EnvironmentState(
            scenario=scenario,
            episode_id=episode_id(scenario, seed),
            context=scenario.context,
            history=(Message(role="user", content=entry["question"]),),
            metadata={"answer": None, "score": 0.0, "problem": None},
        )

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Score the answer. After a wrong answer, the agent may try again until the last turn."""
        state = state.after(action, turn_count=state.turn_count + 1)
        answer = extract_answer(action.content) or action.content.strip()
        score, problem = await call_on_thread(_score, state.scenario, answer)  # a verifier may take long
        ended = score >= 1 or state.turn_count >= self.max_turns
        state = state.after(metadata={"answer": answer, "score": score, "problem": problem}, done=ended)
        if ended:
            return StepResult(state=state, response=None, terminated=True)
        response = Message(role="user", content=TRY_AGAIN)
        return StepResult(state=state.after(response), response=response)

    def fork(self, state: EnvironmentState) -> EnvironmentState:
        """A deep copy, because a state has everything of its episode."""
        return copy.deepcopy(state)

    def state_digest(self, state: EnvironmentState) -> str:
        """Digest of the last message: the question, or the request to try again, whatever the wrong answer was."""
        return world_digest(state)

    def verify(self, state: EnvironmentState) -> Outcome:
        """Score of the last answer. `problem` is the exception if the verifier could not read it."""
        score = state.metadata["score"]
        return Outcome(
            success=score >= 1, checks={"right_answer": score >= 1}, state=dict(state.metadata), reward=score
        )

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool:
        """True, because each question has its verifier."""
        return True

    async def check(self, scenario: Scenario) -> None:
        """Refuse a scenario if it has no question of reasoning-gym, or if its world makes another question."""
        await call_on_thread(_entry, scenario)


def make_task(name: str, options: Mapping[str, Any]) -> ProceduralDataset:
    """Make a generator of questions by its name in reasoning-gym. Raises `DataError` if name or options are invalid."""
    return _load_task(name, json.dumps(options, sort_keys=True))


@functools.lru_cache(maxsize=256)
def _load_task(name: str, options: str) -> ProceduralDataset:
    if name == "composite":
        raise DataError("task composite of reasoning-gym is refused: name its tasks one by one")
    try:
        task: ProceduralDataset = reasoning_gym.create_dataset(name, **json.loads(options))
    except (ValueError, TypeError, AssertionError) as error:
        raise DataError(f"task {name} of reasoning-gym cannot be made with options {options}: {error}") from error
    if evaluating := evaluating_call(type(task)):
        raise DataError(
            f"task {name} of reasoning-gym is refused, because its verifier calls {evaluating} on an answer: what a "
            "policy writes would run as Python. Take another task"
        )
    if constant := constant_answer(name):
        raise DataError(
            f"task {name} of reasoning-gym is refused, because its verifier scores {constant!r} as right, whatever the "
            "question: a policy would learn to write only that. Take another task"
        )
    return task


def make_entry(name: str, options: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Question `index` of a task, with its answer and metadata. Raises `DataError`, see `make_task`.

    Some tasks draw from the generators of the process, which other threads use as well. One question is therefore made
    at a time, both generators are seeded with the index, and their states are set back.
    """
    return copy.deepcopy(_make_entry(name, json.dumps(options, sort_keys=True), index))


@functools.lru_cache(maxsize=4096)
def _make_entry(name: str, options: str, index: int) -> dict[str, Any]:
    task = _load_task(name, options)
    with _making:
        states = random.getstate(), np.random.get_state()
        random.seed(index)
        np.random.seed(index)
        try:
            entry: dict[str, Any] = task[index]
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
    return entry


def _entry(scenario: Scenario) -> dict[str, Any]:
    """Question, answer and metadata of a scenario. Raises `DataError` if its world makes another question."""
    world = scenario.world
    if not isinstance(world.get("task"), str) or type(world.get("index")) is not int:
        raise DataError(
            f'scenario {scenario.id}: world needs a task and an index, {{"task": "chain_sum", "options": {{"seed": 0, '
            f'"size": 12000}}, "index": 17}}, got {str(dict(world))[:100]}'
        )
    entry = make_entry(world["task"], world.get("options", {}), world["index"])
    if scenario.user_responses != (entry["question"],):
        raise DataError(
            f"scenario {scenario.id} asks another question than its world makes now, {entry['question']!r:.200}, "
            "because reasoning-gym has changed, or its options have no seed. Generate the scenarios again"
        )
    return entry


def _score(scenario: Scenario, answer: str) -> tuple[float, str | None]:
    """Score of an answer, and the exception if the verifier cannot read it, so that the score is 0."""
    task, entry = make_task(scenario.world["task"], scenario.world.get("options", {})), _entry(scenario)
    try:
        score = float(task.score_answer(answer, entry))
    except Exception as error:  # noqa: BLE001 - verifiers raise what parsing the model's text raises
        return 0.0, f"{type(error).__name__}: {error}"[:200]
    return (score, None) if math.isfinite(score) else (0.0, f"score {score}")
