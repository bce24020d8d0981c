"""`quick_hpo` on TINY: trials that train a random model of two layers to generate one letter."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from grpo import HPOConfig, MultiTurnAgent, quick_hpo
from grpo.config.agent import AgentConfig
from grpo.environments.conversation import ConversationEnvironment
from grpo.errors import ConfigError
from grpo.messages import Message
from grpo.notebook.config import TrainingConfig
from grpo.policy.transformers.model import TransformersPolicy, weights_hash
from grpo.rewards.reward import RewardContext, RewardResult
from grpo.scenario import Scenario
from grpo.tuning.study_summary import StudySummary
from tests.grpo.notebook.test_trainer import QUICK, SCENARIOS, LetterReward

BASE = TrainingConfig(**{**QUICK, "iterations": 3})  # type: ignore[arg-type]
HELDOUT = [Scenario(id=f"broken {k}", user_responses=(f"order {k} is broken",)) for k in range(12)]
RATES = {"type": "loguniform", "low": 1e-3, "high": 1e-1}


def plan(space: dict[str, object], **changes: object) -> HPOConfig:
    return HPOConfig.model_validate(
        {"search_space": space, "n_trials": 4, "intermediate_evals": 2, "seed": 1, **changes}
    )


def agent_of(tiny: Path) -> MultiTurnAgent:
    return MultiTurnAgent(AgentConfig(model_name=str(tiny)))


def world() -> ConversationEnvironment:
    return ConversationEnvironment(SCENARIOS, max_turns=2)


def hpo(agent: MultiTurnAgent, reward: LetterReward | None = None, **options: object) -> StudySummary:
    options = {"eval_scenarios": HELDOUT, **options}
    return asyncio.run(quick_hpo(agent, world(), reward or LetterReward(), BASE, **options))  # type: ignore[arg-type]


def weights_of(agent: MultiTurnAgent) -> str:
    assert isinstance(agent.policy, TransformersPolicy)
    return weights_hash(agent.policy.model)


def test_trials_differ_and_the_agent_is_unchanged(tiny_folder: Path):
    """Four learning rates; the agent keeps its weights and its policy."""
    agent = agent_of(tiny_folder)
    asyncio.run(agent.initialize())
    policy, before = agent.policy, weights_of(agent)
    summary = hpo(agent, search_config=plan({"learning_rate": RATES}, pruning=False))
    assert [trial.state for trial in summary.trials] == ["complete"] * 4
    assert len({trial.params["learning_rate"] for trial in summary.trials}) == 4
    assert len({trial.reward for trial in summary.trials}) > 1
    assert summary.best_reward == max(trial.reward for trial in summary.trials if trial.reward is not None)
    assert agent.policy is policy
    assert weights_of(agent) == before


def test_each_trial_starts_from_the_same_weights(tiny_folder: Path):
    """The same values twice in one study have the same result to the last digit."""
    rates = {"type": "categorical", "choices": [2e-2, 5e-2]}
    summary = hpo(agent_of(tiny_folder), search_config=plan({"learning_rate": rates}, n_trials=6, pruning=False))
    by_rate: dict[object, set[tuple[float, ...]]] = {}
    for trial in summary.trials:
        by_rate.setdefault(trial.params["learning_rate"], set()).add(trial.intermediate_evals)
    assert set(by_rate) == {2e-2, 5e-2}
    assert [len(intermediate_evals) for intermediate_evals in by_rate.values()] == [1, 1]
    assert by_rate[2e-2] != by_rate[5e-2]


def test_weights_changed_between_trials_fail_the_next(tiny_folder: Path):
    """A reward function that changes the agent: the second trial fails with both hashes."""
    agent = agent_of(tiny_folder)

    class Meddler(LetterReward):
        async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
            if context.scenario in HELDOUT:
                assert isinstance(agent.policy, TransformersPolicy)
                next(agent.policy.model.parameters()).data.add_(1e-3)
            return await super().compute_reward(turns, context)

    summary = hpo(agent, Meddler(), search_config=plan({"learning_rate": RATES}, n_trials=2, intermediate_evals=1))
    assert summary.trials[1].state == "failed"
    assert summary.trials[1].reason is not None
    assert "trial 1 would start from policy" in summary.trials[1].reason


def test_a_trial_that_diverges_is_failed_and_the_study_has_a_best(tiny_folder: Path):
    """A learning rate of 1e30 gives NaN."""
    rates = {"type": "categorical", "choices": [2e-2, 1e30]}
    summary = hpo(agent_of(tiny_folder), search_config=plan({"learning_rate": rates}, n_trials=5))
    exploded = [trial for trial in summary.trials if trial.params["learning_rate"] == 1e30]
    assert exploded
    assert all(trial.state == "failed" and trial.reward is None and trial.reason for trial in exploded)
    assert summary.best_params == {"learning_rate": 2e-2}


def test_trials_are_evaluated_with_the_base_config(tiny_folder: Path):
    """Temperatures differ in training alone: before anything is learned, the same is shown by all."""
    space = {"temperature": {"type": "uniform", "low": 0.3, "high": 1.0}}
    config = BASE.model_copy(update={"learning_rate": 1e-12})
    summary = asyncio.run(
        quick_hpo(
            agent_of(tiny_folder), world(), LetterReward(), config,
            search_config=plan(space, n_trials=2, pruning=False), eval_scenarios=HELDOUT,
        )
    )  # fmt: skip
    first, second = summary.trials
    assert first.params != second.params
    assert first.intermediate_evals == second.intermediate_evals


def test_a_trial_with_other_groups_has_as_many_episodes(tiny_folder: Path):
    """The base has 3 iterations of 3 groups of 8, 72 episodes: six of 3 groups of 4, or two of 3 groups of 12."""
    trained: list[str] = []

    class Counter(LetterReward):
        async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
            trained.extend([context.scenario_id] if context.scenario not in HELDOUT else [])
            return await super().compute_reward(turns, context)

    space = {"group_size": {"type": "categorical", "choices": [4, 12]}}
    hpo(agent_of(tiny_folder), Counter(), search_config=plan(space, n_trials=1, intermediate_evals=1))
    assert len(trained) == 72


def test_a_quarter_is_held_out_by_default(tiny_folder: Path):
    """Of three scenarios one, the same for each trial, and none of the trained ones."""
    seen: dict[str, set[str]] = {}

    class Watcher(LetterReward):
        async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
            seen.setdefault(context.scenario.id, set()).add("judged")
            return await super().compute_reward(turns, context)

    summary = hpo(agent_of(tiny_folder), Watcher(), n_trials=1, search_config=plan({"learning_rate": RATES}),
                eval_scenarios=None)  # fmt: skip
    assert summary.ended == 1
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"iterations": {"type": "int", "low": 2, "high": 9}}, "iterations cannot be tuned"),
        ({"logging_steps": {"type": "int", "low": 1, "high": 2}}, "logging_steps changes neither rollout nor update"),
        ({"group_size": {"type": "int", "low": 1, "high": 4}}, "group_size = 1 cannot be set"),
        ({}, "empty"),
    ],
)
def test_a_space_that_does_not_fit_is_refused_before_the_first_trial(
    tiny_folder: Path, space: dict[str, object], message: str
):
    """The budget, a dead dimension, a bound outside the field's own, and nothing at all."""
    with pytest.raises(ConfigError, match=message):
        hpo(agent_of(tiny_folder), search_config=plan(space))


def test_a_policy_that_cannot_learn_is_refused():
    """A script has no weights."""
    agent = MultiTurnAgent(AgentConfig(model_name="stub://demo", stub_responses=("hi",)))
    with pytest.raises(ConfigError, match="cannot be trained"):
        hpo(agent, n_trials=1)


def test_a_cancelled_search_starts_no_further_trial(tiny_folder: Path):
    """The thread of the search ends with it."""
    judged = threading.Event()

    class Signal(LetterReward):
        async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
            judged.set()
            return await super().compute_reward(turns, context)

    async def begin_and_cancel() -> None:
        going = asyncio.create_task(
            quick_hpo(agent_of(tiny_folder), world(), Signal(), BASE, n_trials=500,
                      search_config=plan({"learning_rate": RATES}), eval_scenarios=HELDOUT)
        )  # fmt: skip
        await asyncio.to_thread(judged.wait, 240)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going

    asyncio.run(begin_and_cancel())  # would last for 500 trials: the loop waits for its threads
