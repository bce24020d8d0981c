"""Custom environments in rollouts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo.config.environments import SimulatedUserSettings
from grpo.config.rollout import RolloutSettings
from grpo.environments.catalog import load_worlds, make_environment
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import Environment, EnvironmentState, StepResult
from grpo.environments.simulator import SimulatedEnvironment
from grpo.environments.task import TaskEnvironment
from grpo.errors import BudgetError, DataError
from grpo.messages import Message
from grpo.policy.policy import Policy
from grpo.policy.scripted import ScriptedPolicy
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.rewards.reward import Episode
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import Outcome, Trajectory


class TaskCompletionEnvironment(Environment):
    """The guide's custom environment: the task is complete after enough turns."""

    def __init__(self, enough: int) -> None:
        self.enough = enough

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        assert scenario is not None
        return EnvironmentState(
            scenario=scenario,
            history=(Message(role="user", content=scenario.goal),),
            metadata={"task": scenario.goal, "completed": False},
        )

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        turns = state.turn_count + 1
        completed = turns == self.enough
        reward = 1.0 if completed else 0.0
        response = Message(role="user", content="more")
        new_state = state.after(
            action, response, turn_count=turns, done=completed, metadata={**state.metadata, "completed": completed}
        )
        return StepResult(state=new_state, response=response, reward=reward, terminated=completed)

    def verify(self, state: EnvironmentState) -> Outcome:
        return Outcome(success=state.metadata["completed"])


class Echo:
    """A third-party simulator."""

    def process(self, state: EnvironmentState, action: Message) -> Mapping[str, Any]:
        last = state.turn_count == 3
        return {"response": f"turn {state.turn_count}", "reward": 0.5, "terminated": last, "success": last}


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def _collect(
    tokens: TransformersPolicy,
    world: Environment,
    scenarios: Iterable[Scenario],
    policy: Policy | None = None,
    **changes: object,
) -> list[Trajectory]:
    """Two samples of each scenario; truncated turns are kept, because the tiny model never ends one."""
    plan = {"max_new_tokens": 5, "max_context": 4000, "on_truncation": "continue", "error_budget": 0.0, **changes}
    return collect(
        list(scenarios),
        policy or tokens,
        world,
        Renderer(tokens.tokenizer, tools=world.tools),
        RolloutSettings.model_validate(plan),
        group_size=2,
        temperature=1.0,
        run_seed=1,
        iteration=0,
    )  # fmt: skip


GOALS = [Scenario(id=f"g{k}", goal="talk to me", context="The sentinel is xylophone.") for k in range(2)]


def test_a_custom_environment_runs_with_the_tiny_model(policy: TransformersPolicy):
    """Two turns each, the last one rewarded, the environment's success; tokens as sampled."""
    for trajectory in _collect(policy, TaskCompletionEnvironment(2), GOALS):
        assert [turn.message.role for turn in trajectory.turns] == ["user", "assistant", "user", "assistant"]
        assert (trajectory.stop, trajectory.turn_rewards) == ("terminated", (0.0, 1.0))
        assert trajectory.outcome == Outcome(success=True)
        assert trajectory.completion_tokens > 0
        assert (trajectory.sampler_logprobs[trajectory.loss_mask] < 0).all()


def test_a_custom_simulator_runs_with_the_tiny_model(policy: TransformersPolicy):
    """Three turns with its answers between them, half a point for each."""
    for trajectory in _collect(policy, SimulatedEnvironment(Echo()), GOALS):
        user_messages = [turn.message.content for turn in trajectory.turns if turn.message.role == "user"]
        assert user_messages == ["talk to me", "turn 1", "turn 2"]
        assert trajectory.turn_rewards == (0.5, 0.5, 0.5)
        assert trajectory.outcome is not None
        assert trajectory.outcome.success


def test_the_context_of_a_scenario_reaches_the_prompt_and_the_reward(policy: TransformersPolicy):
    """After the system prompt, in tokens that are read and masked from the loss."""
    script = [Scenario(id="s", user_responses=("hello",), context="The sentinel is xylophone.")]
    world = ConversationEnvironment(system_prompt="Be kind.")
    for trajectory in _collect(policy, world, script):
        first = trajectory.turns[0]
        assert first.message == Message(role="system", content="Be kind.\n\nThe sentinel is xylophone.")
        prompt_text = policy.tokenizer.decode(trajectory.token_ids[~trajectory.loss_mask].tolist())
        assert "xylophone" in prompt_text
        scenario = Episode.of(trajectory, script[0]).context.scenario
        assert scenario is not None
        assert "xylophone" in scenario.context


def test_a_scripted_agent_solves_a_task(policy: TransformersPolicy):
    """The call is parsed from the policy's text, and the final state determines success."""

    def cancel(state: dict[str, Any], order: str) -> tuple[dict[str, Any], Any]:
        """Cancel an order."""
        state["orders"][order] = "cancelled"
        return state, {"done": order}

    call = json.dumps({"name": "cancel", "arguments": {"order": "1"}})
    agent = ScriptedPolicy([f"<tool_call>{call}</tool_call>", "It is cancelled."])
    world = TaskEnvironment(
        functions=(cancel,), criteria={"cancelled": lambda state: state["orders"]["1"] == "cancelled"}
    )
    order = Scenario(id="o", user_responses=("Cancel it.",), world={"orders": {"1": "open"}})
    for trajectory in _collect(policy, world, [order], agent, max_new_tokens=200):
        assert trajectory.stop == "terminated"
        assert trajectory.outcome is not None
        assert trajectory.outcome.success
        assert trajectory.outcome.state == {"orders": {"1": "cancelled"}}


def test_an_error_of_the_simulated_user_fails_its_episode(policy: TransformersPolicy, tmp_path: Path):
    """The user model leaves its role: a failed episode with its reason, without a reward, in the error budget."""
    (tmp_path / "user.yaml").write_text(yaml.safe_dump([["Hi."], ["As an AI, I cannot be a customer."]]))
    settings = SimulatedUserSettings(kind="simulated_user", model=f"stub://{tmp_path}/user.yaml")
    trajectories = _collect(policy, make_environment(settings), GOALS, error_budget=1.0)
    assert {t.stop for t in trajectories} == {"failed"}
    for trajectory in trajectories:
        assert trajectory.error is not None
        assert trajectory.error.startswith("SimulatedUserError: scenario g")
        assert (trajectory.total_reward, trajectory.outcome) == (None, None)
    with pytest.raises(BudgetError, match=r"3 of 4 episodes have failed.*SimulatedUserError"):
        _collect(policy, make_environment(settings), GOALS, error_budget=0.5)


def test_rule_based_simulated_users_lose_patience(policy: TransformersPolicy):
    """A model that only babbles: two turns, an end, and no success."""
    settings = SimulatedUserSettings(kind="simulated_user", patience=2)
    goals = [_with_goal(scenario, "I want my money back.\n- order number: 4711") for scenario in GOALS]
    for trajectory in _collect(policy, make_environment(settings), goals):
        roles = [turn.message.role for turn in trajectory.turns]
        assert roles == ["system", "user", "assistant", "user", "assistant"]
        assert trajectory.stop == "terminated"
        assert trajectory.outcome is not None
        assert not trajectory.outcome.success


def _with_goal(scenario: Scenario, goal: str) -> Scenario:
    return scenario.model_copy(update={"goal": goal})


@pytest.mark.usefixtures("idle_clock")
def test_slow_environments_run_concurrently(policy: TransformersPolicy):
    """The maximum of waiting episodes is the concurrency, and results keep the input order."""
    waiting: list[int] = []

    class Slow(ConversationEnvironment):
        now = 0

        async def step(self, state: EnvironmentState, action: Message) -> StepResult:
            self.now += 1
            waiting.append(self.now)
            await asyncio.sleep(0.02)
            self.now -= 1
            return await super().step(state, action)

    scripts = [Scenario(id=f"s{k}", user_responses=("hello",)) for k in range(6)]
    trajectories = _collect(policy, Slow(), scripts, ScriptedPolicy(["ok"]), concurrency=4)
    assert max(waiting) == 4
    assert [(t.scenario_id, t.sample) for t in trajectories] == [(s.id, k) for s in scripts for k in range(2)]


def test_a_later_tool_is_appended_after_the_sampled_tokens(policy: TransformersPolicy):
    """Its schema is in the tokens of the message that brings it, and nowhere before; it is masked from the loss."""
    tools = [
        {"name": name, "parameters": {"properties": {"file_name": {"type": "string"}}}, "from_turn": turn}
        for name, turn in (("cat", 0), ("wc", 1))
    ]
    script = Scenario.model_validate(
        {
            "id": "late",
            "user_responses": ["Count.", "There is more now."],
            "tools": tools,
            "world": {"GorillaFileSystem": {"root": {"r": {"type": "directory", "contents": {}}}}},
        }
    )
    for trajectory in _collect(policy, TaskEnvironment(worlds=load_worlds()), [script]):
        roles = [turn.message.role for turn in trajectory.turns]
        assert roles == ["system", "user", "assistant", "user", "assistant"]
        before, bringing = trajectory.turns[2].stop, trajectory.turns[3]
        assert '"wc"' not in policy.tokenizer.decode(trajectory.token_ids[:before].tolist())
        assert '"wc"' in policy.tokenizer.decode(trajectory.token_ids[bringing.start : bringing.stop].tolist())
        assert not trajectory.loss_mask[bringing.start : bringing.stop].any()


def test_an_unplayable_scenario_is_refused_before_the_rollout(policy: TransformersPolicy):
    """The second of two has an unknown tool: the first was not reset."""
    resets: list[str] = []

    class Watched(TaskEnvironment):
        async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
            resets.append(scenario.id if scenario else "")
            return await super().reset(scenario, seed=seed)

    scripts = [
        Scenario(id="good", user_responses=("hello",)),
        Scenario(id="bad", user_responses=("hello",), tools=({"name": "brew", "parameters": {}},)),
    ]
    with pytest.raises(DataError, match="scenario bad is not playable: no world has brew"):
        _collect(policy, Watched(worlds=load_worlds()), scripts, ScriptedPolicy(["ok"]))
    assert resets == []
