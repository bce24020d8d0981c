from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from grpo.config.training import CriticSettings, TrainingSettings
from grpo.errors import PolicyError
from grpo.learner.batch import Batch, Sample
from grpo.learner.credit_assignment import token_rewards
from grpo.learner.critic import Critic
from grpo.messages import Message
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.trajectories import Turn, group
from tests.doubles import make_trajectory

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def make(ids: list[int], *, completion: list[int], reward: float, truncated: bool = False) -> Sample:
    mask = np.isin(np.arange(len(ids)), completion)
    rewards = np.zeros(len(ids))
    rewards[completion[-1]] = reward
    return Sample(
        token_ids=np.array(ids, dtype=np.int32),
        loss_mask=mask,
        sampler_logprobs=np.zeros(len(ids), dtype=np.float32),
        advantages=np.zeros(len(ids), dtype=np.float32),
        temperature=1.0,
        place="s",
        rewards=rewards,
        truncated=truncated,
    )


def batch_of(groups: Sequence[Sequence[Sample]]) -> Batch:
    samples = [sample for members in groups for sample in members]
    return Batch(
        groups=tuple(map(tuple, groups)),
        informative=len(groups),
        group_count=len(groups),
        sample_count=len(samples),
        token_count=sum(int(sample.loss_mask.sum()) for sample in samples),
    )


def new_critic(policy: TransformersPolicy, **settings: object) -> Critic:
    width = policy.model.config.hidden_size
    return Critic(width, CriticSettings(**settings), seed=0, device=CPU)  # type: ignore[arg-type]


def test_an_untrained_critic_gives_the_discounted_reward(policy: TransformersPolicy):
    """V = 0: A_t = (γλ)^(T−t) r_T on completion tokens, 0 elsewhere; γ = .9, λ = .5 → .45 a token."""
    critic = new_critic(policy, gamma=0.9, gae_lambda=0.5)
    sample = make([9, 8, 7, 6, 5, 4], completion=[2, 3, 5], reward=2.0)
    batch, value_targets = critic.estimate_advantages(policy.model, batch_of([(sample,)]), max_tokens=4096, scale=False)
    assert batch.groups[0][0].advantages == pytest.approx([0, 0, 2 * 0.45**2, 2 * 0.45, 0, 2.0])
    assert value_targets.returns.tolist() == pytest.approx([2 * 0.45**2, 2 * 0.45, 2.0])


def test_a_truncated_episode_bootstraps_from_its_last_state(policy: TransformersPolicy):
    """V = .5 everywhere, γ = λ = 1, no reward: terminated → A = −.5, truncated → .5 − .5 = 0."""
    critic = new_critic(policy)
    with torch.no_grad():
        critic.head.layers[2].bias.fill_(0.5)  # type: ignore[union-attr]
    ended = make([9, 8, 7], completion=[1, 2], reward=0.0)
    cut = replace(ended, truncated=True)
    batch, _ = critic.estimate_advantages(policy.model, batch_of([(ended, cut)]), max_tokens=4096, scale=False)
    (first, second) = batch.groups[0]
    gae = 0.95  # the default λ: A_0 = 0 + λ·A_1
    assert first.advantages == pytest.approx([0, -0.5 * gae, -0.5])
    assert second.advantages == pytest.approx([0, 0, 0])


def test_advantages_are_scaled_over_the_whole_batch(policy: TransformersPolicy):
    """Mean 0 and standard deviation 1 over the completion tokens, independent of the microbatches."""
    critic = new_critic(policy)
    samples = (make([9, 8, 7, 6], completion=[2, 3], reward=1.0), make([9, 8, 5], completion=[2], reward=0.0))
    batch, _ = critic.estimate_advantages(policy.model, batch_of([samples[:1], samples[1:]]), max_tokens=4, scale=True)
    values = np.concatenate([s.advantages[s.loss_mask] for members in batch.groups for s in members])
    assert values.mean() == pytest.approx(0, abs=1e-6)
    assert values.std() == pytest.approx(1, abs=1e-5)


def test_the_critic_learns_the_value_of_a_state(policy: TransformersPolicy):
    """Two first tokens with returns 1 and 0: the squared error falls by a factor of 100."""
    critic = new_critic(policy, learning_rate=1e-2, epochs=200, value_clip=None)
    samples = (make([9, 8], completion=[1], reward=1.0), make([50, 8], completion=[1], reward=0.0))
    _, value_targets = critic.estimate_advantages(policy.model, batch_of([samples]), max_tokens=4096, scale=False)
    losses = critic.fit(value_targets)
    assert losses[0] == pytest.approx(0.25)  # half of the mean of 1 and 0
    assert losses[-1] < losses[0] / 100


def test_the_critic_has_no_gradient_in_the_policy(policy: TransformersPolicy):
    """The value loss leaves the weights of the model unchanged."""
    critic = new_critic(policy)
    policy.model.zero_grad(set_to_none=True)
    _, value_targets = critic.estimate_advantages(
        policy.model, batch_of([(make([9, 8], completion=[1], reward=1.0),)]), max_tokens=64, scale=False
    )
    critic.fit(value_targets)
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_a_resumed_critic_goes_on_to_the_same_bits(policy: TransformersPolicy, tmp_path: Path):
    """Twice four steps, or four, a trip to disk and four more."""
    samples = (make([9, 8], completion=[1], reward=1.0), make([50, 8], completion=[1], reward=0.0))
    straight = new_critic(policy, epochs=4)
    _, value_targets = straight.estimate_advantages(policy.model, batch_of([samples]), max_tokens=64, scale=False)
    straight.fit(value_targets)
    straight.save(tmp_path)
    straight.fit(value_targets)
    other = new_critic(policy, epochs=4)
    other.resume(tmp_path)
    other.fit(value_targets)
    for name, value in straight.head.state_dict().items():
        assert torch.equal(value, other.head.state_dict()[name]), name


def test_a_critic_of_another_width_is_refused(policy: TransformersPolicy, tmp_path: Path):
    """A checkpoint continues only the model that it is of."""
    critic = new_critic(policy, epochs=1)
    _, value_targets = critic.estimate_advantages(
        policy.model, batch_of([(make([9, 8], completion=[1], reward=1.0),)]), max_tokens=64, scale=False
    )
    critic.fit(value_targets)
    critic.save(tmp_path)
    with pytest.raises(PolicyError, match="does not fit this model"):
        Critic(8, CriticSettings(), seed=0, device=CPU).resume(tmp_path)


@pytest.mark.parametrize(
    "knob",
    [{"gamma": 0.5}, {"gae_lambda": 0.2}, {"learning_rate": 0.1}, {"epochs": 1}, {"value_clip": 0.001}],
    ids=str,
)
def test_every_setting_of_the_critic_has_an_effect(policy: TransformersPolicy, knob: dict[str, float]):
    """On the advantages, or on the head after the fit."""
    samples = (make([9, 8, 7, 6], completion=[1, 2, 3], reward=1.0), make([50, 8], completion=[1], reward=0.3))

    def outcome(**settings: float) -> torch.Tensor:
        critic = new_critic(policy, **settings)
        batch, value_targets = critic.estimate_advantages(policy.model, batch_of([samples]), max_tokens=64, scale=False)
        critic.fit(value_targets)
        weights = torch.cat([p.detach().flatten() for p in critic.head.parameters()])
        advantages = np.concatenate([sample.advantages for sample in batch.groups[0]])
        return torch.cat([weights, torch.from_numpy(advantages)])

    assert not torch.allclose(outcome(), outcome(**knob), atol=1e-6)


def test_the_reward_of_an_overridden_turn_goes_to_the_completion_before_it():
    """Tokens P A1 E A2, A2 overridden: A1 gets .1, the .2 of A2 and the terminal 1."""
    message = Message(role="assistant", content="x")
    turns = (Turn(message=message, start=1, stop=2), Turn(message=message, start=3, stop=4))
    trajectory = make_trajectory(
        turns=turns,
        token_ids=np.zeros(4, dtype=np.int32),
        loss_mask=np.array([False, True, False, False]),
        sampler_logprobs=np.zeros(4, dtype=np.float32),
        turn_rewards=(0.1, 0.2),
        terminal_reward=1.0,
    )
    groups = group([trajectory, replace(trajectory, sample=1)])
    ((rewards, _),) = token_rewards(groups, TrainingSettings(algorithm="ppo"))
    assert rewards == pytest.approx([0.0, 1.3, 0.0, 0.0])
