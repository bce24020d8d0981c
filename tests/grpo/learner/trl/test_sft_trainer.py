from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo import progress
from grpo.errors import DataError, NoLearningSignal
from grpo.learner.offline.demonstrations import TokenizedDemonstration
from grpo.learner.trl.loop import training_arguments
from grpo.learner.trl.sft_trainer import train_sft
from grpo.policy.transformers.model import TransformersPolicy
from tests.checkpoint_weights import share_of_the_step, weights_of
from tests.models.families import tiny_model


def make_demonstrations() -> list[TokenizedDemonstration]:
    """Four conversations of 7 to 13 tokens: prompt, turn, reply of the environment, turn."""
    rng = np.random.default_rng(5)
    demonstrations = []
    for index in range(4):
        mask = np.repeat([False, True, False, True], [3 + index, 2, 1, 1 + index])
        ids = rng.integers(8, 200, len(mask)).astype(np.int32)
        demonstrations.append(TokenizedDemonstration(token_ids=ids, loss_mask=mask))
    return demonstrations


def mean_loss(policy: TransformersPolicy, demonstrations: list[TokenizedDemonstration]) -> torch.Tensor:
    """−Σ log π(token) / tokens, over the tokens of the mask, one conversation at a time."""
    losses = []
    for demonstration in demonstrations:
        ids = torch.from_numpy(demonstration.token_ids.astype(np.int64))
        logprobs = torch.log_softmax(policy.model(input_ids=ids[None]).logits[0], dim=-1)
        losses += [-logprobs[place - 1, ids[place]] for place in np.flatnonzero(demonstration.loss_mask)]
    return torch.stack(losses).mean()


@pytest.mark.parametrize("max_tokens", [16384, 16])  # one pass of four rows, or four passes
def test_the_loss_of_a_step_is_the_mean_over_the_agents_tokens(policy: TransformersPolicy, max_tokens: int):
    """Whatever the passes: tokens weigh the same, not conversations."""
    expected = mean_loss(policy, make_demonstrations()).item()
    (loss,) = train_sft(
        policy.model, policy.tokenizer, make_demonstrations(), learning_rate=1e-4, max_tokens=max_tokens
    )
    assert loss == pytest.approx(expected, abs=1e-4)


def test_prompts_and_replies_of_the_environment_have_no_loss(policy: TransformersPolicy):
    """A last reply of the environment that is another one trains the same weights."""
    demonstrations = make_demonstrations()
    tail = [
        TokenizedDemonstration(token_ids=np.append(d.token_ids, token), loss_mask=np.append(d.loss_mask, False))
        for d, token in zip(demonstrations, (11, 12, 13, 14), strict=True)
    ]
    start, other = copy.deepcopy(policy.model), TransformersPolicy(copy.deepcopy(policy.model), policy.tokenizer)
    for trained, examples in ((policy, demonstrations), (other, tail)):
        train_sft(trained.model, trained.tokenizer, examples, learning_rate=1e-3)
    assert share_of_the_step(weights_of(policy.model), weights_of(other.model), weights_of(start)) < 3e-4


def test_demonstrations_are_learned(policy: TransformersPolicy):
    """Forty epochs of two steps halve the loss."""
    losses = train_sft(
        policy.model,
        policy.tokenizer,
        make_demonstrations(),
        learning_rate=1e-2,
        epochs=40,
        conversations_per_step=2,
    )
    assert len(losses) == 80
    assert losses[-1] < 0.5 * losses[0]
    assert not policy.model.training


def test_each_step_is_reported_with_its_loss(policy: TransformersPolicy):
    """Of four conversations, two a step."""
    seen: list[tuple[str, int, int, float]] = []

    def see(stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
        seen.append((stage, done, total, numbers["loss"]))

    with progress.observed(see):
        losses = train_sft(
            policy.model, policy.tokenizer, make_demonstrations(), learning_rate=1e-4, conversations_per_step=2
        )
    assert [entry[:3] for entry in seen] == [("sft", 1, 2), ("sft", 2, 2)]
    assert [entry[3] for entry in seen] == pytest.approx(losses, rel=1e-4)


def test_the_order_follows_the_seed(policy: TransformersPolicy):
    """One conversation a step: another seed, another first loss."""

    def first(seed: int) -> float:
        model = copy.deepcopy(policy.model)
        rate = {"learning_rate": 1e-4, "conversations_per_step": 1}
        return train_sft(model, policy.tokenizer, make_demonstrations(), seed=seed, **rate)[0]

    assert first(0) == first(0)
    assert len({round(first(seed), 6) for seed in range(6)}) > 1


def test_a_model_with_dropout_is_trained_without_it(policy: TransformersPolicy):
    """GPT-2 has three rates of .1: the first loss is computed without dropout, and the rates are back afterwards."""
    model = tiny_model("gpt2")
    assert model.config.resid_pdrop == 0.1
    wrapped = TransformersPolicy(model, policy.tokenizer)
    demonstrations = [
        replace(demonstration, token_ids=demonstration.token_ids % model.config.vocab_size)
        for demonstration in make_demonstrations()
    ]
    expected = mean_loss(wrapped, demonstrations).item()
    (loss,) = train_sft(model, policy.tokenizer, demonstrations, learning_rate=1e-4)
    assert loss == pytest.approx(expected, abs=1e-4)
    assert model.config.resid_pdrop == 0.1
    assert not model.training


def test_demonstrations_without_a_token_to_learn_are_refused(policy: TransformersPolicy):
    """None at all, or none after the first token."""
    with pytest.raises(NoLearningSignal, match="the list of demonstrations is empty"):
        train_sft(policy.model, policy.tokenizer, [], learning_rate=1e-4)
    with pytest.raises(DataError, match="without a token of the agent after its first token"):
        TokenizedDemonstration(token_ids=np.array([5, 6], np.int32), loss_mask=np.array([True, False]))
    with pytest.raises(DataError, match="2 tokens and a loss mask of 1"):
        TokenizedDemonstration(token_ids=np.array([5, 6], np.int32), loss_mask=np.array([True]))


def test_a_seed_of_trl_may_be_a_date_and_a_time():
    """transformers seeds NumPy, which takes seeds below 2³² only. 2⁴⁰ + 3 leaves 3."""
    seeds = [training_arguments("", torch.device("cpu"), seed=seed)["seed"] for seed in (3, 2**40 + 3)]
    assert seeds == [3, 3]
