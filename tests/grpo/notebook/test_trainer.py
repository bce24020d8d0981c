"""Training in memory on TINY: a random model of two layers that learns to generate one letter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.environments.conversation import ConversationEnvironment
from grpo.errors import ConfigError, NoEffect, NoLearningSignal, RewardError
from grpo.messages import Message
from grpo.notebook.adjuster import Adjuster
from grpo.notebook.auto import AutoTrainer, choose_profile
from grpo.notebook.callbacks import Callback, EarlyStoppingCallback, TrainingControl
from grpo.notebook.config import TrainingConfig, TrainingProfile
from grpo.notebook.diagnostics import IterationRecord
from grpo.notebook.trainer import MultiTurnGRPOTrainer, SingleTurnGRPOTrainer, train
from grpo.policy.transformers.model import load
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.scenario import Expected, Scenario
from grpo.trajectories import Outcome, TrajectoryGroup
from tests.doubles import make_trajectory
from tests.grpo.notebook.test_diagnostics import record
from tests.grpo.rewards.hacking.test_turn_rewards import BAD

SCENARIOS = [Scenario(id=text, user_responses=(text, "and then")) for text in ("hello", "my order", "how are you")]
HELDOUT = [Scenario(id="broken", user_responses=("broken",))]
QUICK = {
    "iterations": 4,
    "scenarios": 3,
    "group_size": 8,
    "learning_rate": 2e-2,
    "max_new_tokens": 6,
}
"""Four iterations of three groups of eight."""


class LetterReward(RewardFunction):
    """Share of one letter in the replies; `sign` reverses it."""

    name = "letter"

    def __init__(self, letter: str = "o", *, sign: float = 1.0) -> None:
        super().__init__()
        self.letter, self.sign = letter, sign

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        text = "".join(turn.content for turn in turns if turn.role == "assistant")
        return RewardResult(score=self.sign * text.count(self.letter) / max(1, len(text)))


class SameReward(RewardFunction):
    """The same for everybody."""

    name = "same"

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        return RewardResult(score=0.5)


def make_trainer(
    tiny: Path, reward: RewardFunction | None = None, *, folder: Path | None = None, **changes: object
) -> MultiTurnGRPOTrainer:
    agent = MultiTurnAgent(AgentConfig(model_name=str(tiny)))
    world = ConversationEnvironment(SCENARIOS, max_turns=2)
    config = TrainingConfig(**{**QUICK, **changes})  # type: ignore[arg-type]
    return MultiTurnGRPOTrainer(agent, world, reward or LetterReward(), config, eval_scenarios=HELDOUT, folder=folder)


def run(trainer: MultiTurnGRPOTrainer, *callbacks: Callback) -> list[float]:
    """Train; the mean reward of each iteration."""
    asyncio.run(trainer.train(callbacks))
    return [shown.rollout.reward or 0.0 for shown in trainer.monitor.records]


@pytest.mark.parametrize(("sign", "better"), [(1.0, True), (-1.0, False)])
def test_the_share_of_the_letter_follows_the_reward(tiny_folder: Path, sign: float, better: bool):
    """From 4 % of the replies to above 40 %, or to less than 1 %, in fourteen iterations."""
    trainer = make_trainer(tiny_folder, LetterReward(sign=sign), iterations=14, learning_rate=5e-2)
    shares = [sign * reward for reward in run(trainer)]
    assert shares[0] == pytest.approx(0.04, abs=0.02)
    assert (shares[-1] > 0.4) if better else (shares[-1] < 0.01)


def test_turn_rewards_that_mislead_are_refused_before_the_first_update(tiny_folder: Path):
    """The check of the pipeline; no checkpoint is written."""
    trainer = make_trainer(tiny_folder, turn_reward_admission="refuse")
    with pytest.raises(RewardError, match="turn rewards mislead"):
        asyncio.run(trainer.update_policy([trajectory for group in BAD for trajectory in group.trajectories]))
    assert not trainer.checkpoint(0).exists()


def test_a_constant_reward_is_an_error(tiny_folder: Path):
    """Every advantage is 0."""
    with pytest.raises(NoLearningSignal):
        run(make_trainer(tiny_folder, SameReward()))


def test_an_update_that_changes_nothing_fails(tiny_folder: Path):
    """A learning rate of 0 is an error."""
    with pytest.raises(NoEffect):
        run(make_trainer(tiny_folder, learning_rate=0.0))


def test_a_changed_setting_takes_part_in_the_next_update(tiny_folder: Path):
    """As an adjuster changes it: the learning rate of the config would have an effect."""
    trainer = make_trainer(tiny_folder)
    trainer.settings = trainer.settings.model_copy(update={"learning_rate": 0.0})
    with pytest.raises(NoEffect):
        run(trainer)


def test_the_same_seed_trains_the_same(tiny_folder: Path):
    """Bit for bit: the hashes of the policies agree; another seed gives another one."""
    hashes = []
    for seed in (0, 0, 1):
        trainer = make_trainer(tiny_folder, seed=seed, iterations=2)
        run(trainer)
        hashes.append(trainer.agent.policy.hash)
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_agent_generates_with_the_trained_policy(tiny_folder: Path):
    """Its reply is that of the last checkpoint."""
    trainer = make_trainer(tiny_folder, iterations=1)
    asyncio.run(trainer.agent.initialize())
    before = trainer.agent.policy.hash
    run(trainer)
    assert trainer.agent.policy.hash != before
    assert isinstance(asyncio.run(trainer.agent.generate_response("hello")), str)


class _Killed(Exception):
    pass


class _Kill(Callback):
    """Ends the process, as far as the trainer can see, after an iteration."""

    def __init__(self, index: int) -> None:
        self.index = index

    def on_iteration_end(self, shown: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        if shown.index == self.index:
            raise _Killed


def test_a_resumed_training_reaches_the_same_weights(tmp_path: Path, tiny_folder: Path):
    """Killed after the second of four iterations; the same call in the same folder runs the other two."""
    whole = make_trainer(tiny_folder, folder=tmp_path / "whole")
    curve = run(whole)
    with pytest.raises(_Killed):
        run(make_trainer(tiny_folder, folder=tmp_path / "killed"), _Kill(1))
    again = make_trainer(tiny_folder, folder=tmp_path / "killed")
    played = []
    again.register_callback("on_iteration_end", lambda shown, checkpoint, control: played.append(shown.index))
    assert run(again) == curve
    assert played == [2, 3]
    assert again.agent.policy.hash == whole.agent.policy.hash


def test_a_folder_of_another_config_is_refused(tmp_path: Path, tiny_folder: Path):
    """A training resumes with its own config alone."""
    run(make_trainer(tiny_folder, folder=tmp_path, iterations=1))
    with pytest.raises(ConfigError, match="another config"):
        run(make_trainer(tiny_folder, folder=tmp_path, iterations=1, seed=5))


def test_save_steps_selects_the_kept_checkpoints(tmp_path: Path, tiny_folder: Path):
    """The base, every second one, and the last."""
    trainer = make_trainer(tiny_folder, folder=tmp_path, save_steps=2, iterations=3)
    run(trainer)
    assert [trainer.checkpoint(k).exists() for k in (-1, 0, 1, 2)] == [True, False, True, True]


def test_an_evaluation_leaves_the_training_unchanged(tiny_folder: Path):
    """The same numbers twice, the same weights, the same random numbers."""
    trainer = make_trainer(tiny_folder)

    async def look() -> tuple[dict[str, float], dict[str, float]]:
        return await trainer.evaluate(), await trainer.evaluate()

    state = torch.get_rng_state()
    first, second = asyncio.run(look())
    assert first == second
    assert set(first) == {"reward"}  # nothing is verified in a conversation
    assert torch.equal(torch.get_rng_state(), state)
    assert trainer.agent.policy.hash == make_hash(tiny_folder)


def make_hash(tiny: Path) -> str:
    from grpo.policy.transformers.model import load

    return load(tiny).hash


def test_evaluations_follow_eval_steps(tiny_folder: Path):
    """Every second of four iterations, the last among them; without eval_steps only at the end."""
    for steps, expected in ((2, [1, 3]), (None, [3])):
        trainer, seen = make_trainer(tiny_folder, eval_steps=steps), []
        trainer.register_callback("on_evaluate", lambda index, metrics, control, seen=seen: seen.append(index))
        run(trainer)
        assert seen == expected


def test_a_scenario_in_training_and_evaluation_is_refused(tiny_folder: Path):
    """Its result would be contaminated."""
    agent = MultiTurnAgent(AgentConfig(model_name=str(tiny_folder)))
    with pytest.raises(ConfigError, match="are in scenarios and eval_scenarios"):
        MultiTurnGRPOTrainer(agent, ConversationEnvironment(SCENARIOS), LetterReward(), eval_scenarios=SCENARIOS[:1])


def test_every_episode_has_one_event(tiny_folder: Path):
    """96 of them; each has its reward."""
    trainer, rewards = make_trainer(tiny_folder), []
    trainer.register_callback("on_episode_end", lambda trajectory: rewards.append(trajectory.total_reward))
    run(trainer)
    assert len(rewards) == 96
    assert None not in rewards


def test_an_unknown_event_is_refused(tiny_folder: Path):
    """It would never be called."""
    with pytest.raises(ConfigError, match="on_epoch_end"):
        make_trainer(tiny_folder).register_callback("on_epoch_end", print)  # type: ignore[arg-type]


def test_a_callback_can_stop_the_training(tiny_folder: Path):
    """Nothing rises above a best of the first iteration by 10: stopped after the second."""
    rewards = run(make_trainer(tiny_folder), EarlyStoppingCallback(patience=1, min_delta=10.0))
    assert len(rewards) == 2


def test_a_group_has_group_size_trajectories(tiny_folder: Path):
    """Two scenarios, eight each."""
    groups = asyncio.run(make_trainer(tiny_folder).generate_trajectories(SCENARIOS[:2]))
    assert [len(each.trajectories) for each in groups] == [8, 8]


def test_single_turn_episodes_have_one_reply(tiny_folder: Path):
    """The script has two lines; the episode has the first alone."""
    agent = MultiTurnAgent(AgentConfig(model_name=str(tiny_folder)))
    world = ConversationEnvironment(SCENARIOS, max_turns=2)
    config = TrainingConfig(**{**QUICK, "iterations": 1})  # type: ignore[arg-type]
    trainer = SingleTurnGRPOTrainer(agent, world, LetterReward(), config)
    replies = []
    trainer.register_callback(
        "on_episode_end", lambda t: replies.append(sum(message.role == "assistant" for message in t.messages))
    )
    before = make_hash(tiny_folder)
    run(trainer)
    assert set(replies) == {1}
    assert agent.policy.hash != before


def test_a_kl_spike_halves_the_learning_rate_once_and_is_recorded(tiny_folder: Path):
    """Injected after three quiet iterations; the next quiet one changes nothing more."""
    trainer = make_trainer(tiny_folder)
    adjuster = Adjuster(trainer)
    for index, kl in enumerate((0.01, 0.01, 0.01, 1.0, 0.01)):
        trainer.monitor.observe(record(index, kl_to_base=kl))
        adjuster.on_iteration_end(trainer.monitor.records[-1], Path(), TrainingControl(10))
    assert trainer.settings.learning_rate == 1e-2
    [change] = adjuster.adjustments
    assert (change.index, change.setting, change.before, change.after) == (3, "learning_rate", 2e-2, 1e-2)
    assert change.reason == "KL to the base is 1 nats per token, its median before is 0.01"


@pytest.mark.parametrize(
    ("rollout", "setting", "after"),
    [({"informative_groups": 0}, "group_size", 16), ({"truncated_share": 0.5}, "max_new_tokens", 9)],
)
def test_uninformative_groups_and_truncation_change_the_rollout(
    tiny_folder: Path, rollout: dict[str, object], setting: str, after: int
):
    """8 siblings become 16, 6 tokens 9."""
    trainer = make_trainer(tiny_folder)
    adjuster = Adjuster(trainer)
    adjuster.on_iteration_end(_observed(trainer, record(rollout=rollout)), Path(), TrainingControl(10))
    assert getattr(trainer.settings, setting) == after


def _observed(trainer: MultiTurnGRPOTrainer, shown: IterationRecord) -> IterationRecord:
    trainer.monitor.observe(shown)
    return shown


@pytest.mark.parametrize(
    ("groups", "profile"),
    [
        ([[1.0, 1.0, 1.0], [1.0, 0.9, 1.0]], TrainingProfile.CONSERVATIVE),
        ([[0.5, 0.5, 0.5], [0.4, 0.4, 0.4]], TrainingProfile.EXPERIMENTAL),
        ([[0.1, 0.3, 0.0], [0.0, 0.2, 0.0]], TrainingProfile.AGGRESSIVE),
        ([[0.5, 0.6, 0.4], [0.4, 0.6, 0.8]], TrainingProfile.BALANCED),
    ],
)
def test_a_profile_is_chosen_by_the_probe(groups: list[list[float]], profile: TrainingProfile):
    """Nearly solved, uninformative groups, low success, in between."""
    shown = [
        TrajectoryGroup(
            scenario_id=str(k),
            trajectories=tuple(
                make_trajectory(scenario_id=str(k), sample=n, terminal_reward=reward)
                for n, reward in enumerate(rewards)
            ),
        )
        for k, rewards in enumerate(groups)
    ]
    chosen, reason = choose_profile(shown)
    assert chosen == profile
    assert "2 probe groups" in reason


def test_verified_success_counts_more_than_the_reward():
    """All succeed, with a low reward."""
    trajectories = tuple(
        make_trajectory(sample=n, terminal_reward=0.1 * n, outcome=Outcome(success=True)) for n in range(3)
    )
    profile, reason = choose_profile([TrajectoryGroup(scenario_id="s", trajectories=trajectories)])
    assert profile == TrainingProfile.CONSERVATIVE
    assert reason.startswith("verified success is 1.00")


def test_the_auto_trainer_has_its_profile_and_trains(tiny_folder: Path):
    """A random model knows nothing: its profile is not the careful one."""
    agent, auto = MultiTurnAgent(AgentConfig(model_name=str(tiny_folder))), AutoTrainer()
    before = make_hash(tiny_folder)
    asyncio.run(
        auto.train(agent, ConversationEnvironment(SCENARIOS, max_turns=2), LetterReward(), **{**QUICK, "iterations": 1})
    )
    assert auto.profile in (TrainingProfile.AGGRESSIVE, TrainingProfile.EXPERIMENTAL)
    assert auto.reason
    assert agent.policy.hash != before


def test_train_is_one_call(tiny_folder: Path):
    """The guide's function: an agent in, the same agent out, with another policy."""
    agent = MultiTurnAgent(AgentConfig(model_name=str(tiny_folder)))
    world = ConversationEnvironment(SCENARIOS, max_turns=2)
    trained = asyncio.run(
        train(agent, world, LetterReward(), num_episodes=24, profile="aggressive", auto_adjust=True,
              scenarios=3, max_new_tokens=6)
    )  # fmt: skip
    assert trained is agent
    assert agent.policy.hash != make_hash(tiny_folder)


def test_a_policy_that_cannot_learn_is_refused():
    """A script has no weights."""
    agent = MultiTurnAgent(AgentConfig(model_name="stub://demo", stub_responses=("hi",)))
    with pytest.raises(ConfigError, match="cannot be trained"):
        asyncio.run(train(agent, ConversationEnvironment(SCENARIOS), LetterReward(), num_episodes=8))


def test_a_teacher_in_a_notebook_trains_where_rewards_are_equal(tiny_folder: Path, tmp_path: Path):
    """Another checkpoint, kept in the folder of the training, and the same model with a hint."""
    policy = load(tiny_folder)
    torch.nn.init.normal_(policy.model.get_output_embeddings().weight, std=0.1)
    policy.model.save_pretrained(tmp_path / "other")
    policy.tokenizer.save_pretrained(tmp_path / "other")
    taught = {"teacher_model_name_or_path": str(tmp_path / "other")}
    trainer = make_trainer(tiny_folder, SameReward(), folder=tmp_path / "run", iterations=2, distillation=taught)
    run(trainer)
    first, last = (each.update.teacher_kl for each in trainer.monitor.records)
    assert first is not None
    assert last is not None
    assert last < first
    hinted = make_trainer(tiny_folder, SameReward(), iterations=1, distillation={"privileged_context": ["responses"]})
    told = {s.id: s.model_copy(update={"expected": Expected(responses=("hello",))}) for s in SCENARIOS[:2]}
    hinted.scenarios.update(told)
    run(hinted)
    (whole, _), (part,) = ([each.update for each in done.monitor.records] for done in (trainer, hinted))
    assert (whole.taught_share, part.taught_share) == (1, 1)
    assert 0.3 * whole.tokens < part.tokens < whole.tokens  # the third scenario has no hint, and is left out


def test_a_plain_function_is_a_reward_and_other_kinds_are_refused() -> None:
    """A list, the path of a model and an environment of another library get a sentence before anything is loaded."""
    agent = MultiTurnAgent(AgentConfig(model_name="stub://demo", stub_responses=["a"]))
    environment = ConversationEnvironment(scenarios=SCENARIOS)

    def brief(turns: Sequence[Message]) -> float:
        return 1.0

    assert MultiTurnGRPOTrainer(agent, environment, brief).reward_fn.name == "brief"
    for arguments, reason in (
        ((agent, environment, [brief]), "this is a list. Combine several in CompositeReward"),
        (("a/model", environment, brief), "the agent is a str. Give a MultiTurnAgent"),
        ((agent, object(), brief), "the environment is a object. Give an Environment"),
    ):
        for kind in (MultiTurnGRPOTrainer, SingleTurnGRPOTrainer):
            with pytest.raises(ConfigError, match=reason):
                kind(*arguments)  # type: ignore[arg-type]
