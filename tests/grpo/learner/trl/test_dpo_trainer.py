from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from grpo.errors import ConfigError, DataError, NoLearningSignal
from grpo.learner.trl.dpo_trainer import TokenizedPair, make_preference_pairs, train_dpo
from grpo.policy.transformers.model import TransformersPolicy
from grpo.trajectories import Trajectory, TrajectoryGroup
from tests.checkpoint_weights import share_of_the_step, weights_of
from tests.doubles import make_trajectory
from tests.grpo.learner.conftest import perturbed

BETA = 0.3


def make_pairs() -> list[TokenizedPair]:
    """Three prompts of different lengths; completion, environment, completion and a last reply of the environment."""
    rng = np.random.default_rng(7)

    def side() -> tuple[np.ndarray, np.ndarray]:
        lengths = rng.integers(2, 6, 4)
        return rng.integers(8, 200, lengths.sum()).astype(np.int32), np.repeat([True, False, True, False], lengths)

    pairs = []
    for index in range(3):
        (chosen, chosen_mask), (rejected, rejected_mask) = side(), side()
        pairs.append(
            TokenizedPair(
                prompt_ids=rng.integers(8, 200, 3 + index).astype(np.int32),
                chosen_ids=chosen,
                chosen_mask=chosen_mask,
                rejected_ids=rejected,
                rejected_mask=rejected_mask,
                scenario_id=f"s{index}",
            )
        )
    return pairs


def fit(
    policy: TransformersPolicy, pairs: list[TokenizedPair], *, rate: float = 0.0, **changes: Any
) -> list[dict[str, float]]:
    """Run DPO on the policy's model, by default without moving it, against a copy of itself."""
    settings = {"reference": copy.deepcopy(policy.model), "beta": BETA, **changes}
    optimizer = torch.optim.AdamW(policy.model.parameters(), weight_decay=0.0)
    return train_dpo(
        policy.model, policy.tokenizer, pairs, optimizer=optimizer, learning_rate=lambda _: rate, **settings
    )


def completion_logprob(model: PreTrainedModel, prompt: np.ndarray, ids: np.ndarray, mask: np.ndarray) -> torch.Tensor:
    """Sum of the log-probabilities of the completion tokens."""
    whole = torch.from_numpy(np.concatenate([prompt, ids]).astype(np.int64))
    logprobs = torch.log_softmax(model(input_ids=whole[None]).logits[0].float(), dim=-1)
    places = np.flatnonzero(mask) + len(prompt)
    return torch.stack([logprobs[place - 1, whole[place]] for place in places]).sum()


def margin(model: PreTrainedModel, reference: PreTrainedModel, pair: TokenizedPair) -> torch.Tensor:
    """β[log(π/π_ref)(chosen) − log(π/π_ref)(rejected)]."""
    sides = [(pair.chosen_ids, pair.chosen_mask), (pair.rejected_ids, pair.rejected_mask)]
    chosen, rejected = [
        completion_logprob(model, pair.prompt_ids, ids, mask)
        - completion_logprob(reference, pair.prompt_ids, ids, mask).detach()
        for ids, mask in sides
    ]
    return BETA * (chosen - rejected)


def test_a_policy_that_is_the_reference_has_loss_ln_2(policy: TransformersPolicy):
    """−log σ(0) = .693147, margin 0."""
    (step,) = fit(policy, make_pairs())
    assert step["loss"] == pytest.approx(0.693147, abs=1e-6)
    assert step["margin"] == pytest.approx(0, abs=1e-6)


def test_trls_loss_is_the_formula_on_completion_tokens(policy: TransformersPolicy):
    """Against another reference, by hand and one sequence at a time."""
    reference, pairs = perturbed(policy.model), make_pairs()
    by_hand = torch.stack([margin(policy.model, reference, pair) for pair in pairs]).detach()
    assert by_hand.abs().min() > 0.01  # there is something to agree on
    (step,) = fit(policy, pairs, reference=reference)
    assert step["loss"] == pytest.approx(float(-torch.nn.functional.logsigmoid(by_hand).mean()), abs=1e-5)
    assert step["margin"] == pytest.approx(float(by_hand.mean()), abs=1e-5)
    assert step["accuracy"] == pytest.approx(float((by_hand > 0).float().mean()))


def test_trls_gradient_is_that_of_the_formula(policy: TransformersPolicy):
    """One step of plain gradient descent, whose weights show the gradient."""
    reference, pairs = perturbed(policy.model), make_pairs()
    model = copy.deepcopy(policy.model)
    (-torch.nn.functional.logsigmoid(torch.stack([margin(model, reference, pair) for pair in pairs])).mean()).backward()
    optimizer = torch.optim.SGD(policy.model.parameters())
    train_dpo(
        policy.model,
        policy.tokenizer,
        pairs,
        reference=reference,
        optimizer=optimizer,
        learning_rate=lambda _: 1.0,
        beta=BETA,
        max_grad_norm=1e9,
    )
    for before, after in zip(model.parameters(), policy.model.parameters(), strict=True):
        assert torch.allclose(before.detach() - after.detach(), before.grad, atol=1e-5)


def test_the_margin_rises(policy: TransformersPolicy):
    """A few steps make chosen sides likelier than rejected ones, relative to the reference."""
    steps = fit(policy, make_pairs(), rate=1e-3, epochs=5)
    assert len(steps) == 5
    assert steps[-1]["margin"] > steps[0]["margin"] + 0.3
    assert steps[-1]["loss"] < math.log(2)
    assert steps[-1]["accuracy"] == 1


def test_tokens_outside_the_loss_mask_have_no_gradient(policy: TransformersPolicy):
    """The gradient of the states that predict the environment's tokens and padding is exactly 0."""
    pairs, seen = make_pairs(), []

    def watch(_: Any, __: Any, output: Any) -> None:
        if output.last_hidden_state.requires_grad:
            output.last_hidden_state.register_hook(seen.append)

    with policy.model.base_model.register_forward_hook(watch):
        fit(policy, pairs, pairs_per_step=1, max_grad_norm=1e9)
    assert len(seen) == 3
    shapes = []
    for gradient in seen:
        nonzero = (gradient != 0).any(dim=-1)  # [chosen and rejected, tokens]
        shapes.append([tuple(torch.nonzero(row)[:, 0].tolist()) for row in nonzero])
    expected = [
        [
            tuple((np.flatnonzero(mask) + len(pair.prompt_ids) - 1).tolist())
            for mask in (pair.chosen_mask, pair.rejected_mask)
        ]
        for pair in pairs
    ]
    assert sorted(shapes) == sorted(expected)


def test_the_step_does_not_depend_on_the_passes(policy: TransformersPolicy):
    """One pass of three pairs, or one a pair, gives the same weights."""
    start, whole, cut = (
        copy.deepcopy(policy.model),
        policy,
        TransformersPolicy(copy.deepcopy(policy.model), policy.tokenizer),
    )
    fit(whole, make_pairs(), rate=1e-3)
    fit(cut, make_pairs(), rate=1e-3, max_tokens=64)
    assert share_of_the_step(weights_of(whole.model), weights_of(cut.model), weights_of(start)) < 3e-4


def test_nothing_but_the_weights_is_changed(
    policy: TransformersPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Config, forward pass, mode and working folder are as before; the reference keeps its weights too."""
    monkeypatch.chdir(tmp_path)
    reference = copy.deepcopy(policy.model)
    before = (
        policy.model.config.to_dict(),
        policy.model.generation_config.to_dict(),
        copy.deepcopy(reference.state_dict()),
    )
    fit(policy, make_pairs(), rate=1e-3, reference=reference)
    assert (policy.model.config.to_dict(), policy.model.generation_config.to_dict()) == before[:2]
    assert not policy.model.training
    assert "forward" not in vars(policy.model) | vars(reference)
    assert all(torch.equal(before[2][name], value) for name, value in reference.state_dict().items())
    assert not list(tmp_path.iterdir())


def test_a_reference_that_is_the_policy_itself_is_refused(policy: TransformersPolicy):
    """It would change with the policy, and the margin stay 0."""
    with pytest.raises(ConfigError, match="Pass a frozen copy"):
        fit(policy, make_pairs(), reference=policy.model)


def test_a_beta_of_zero_is_refused(policy: TransformersPolicy):
    """Every pair would have weight 0."""
    with pytest.raises(ConfigError, match=r"training.beta is 0"):
        fit(policy, make_pairs(), beta=0.0)


def test_without_pairs_the_update_is_an_error(policy: TransformersPolicy):
    """All rewards are equal."""
    with pytest.raises(NoLearningSignal, match="no pair can be made"):
        fit(policy, [])


def siblings(*rewards: float | None) -> TrajectoryGroup:
    """Samples with the prompt 5 6 7 and the completion 20 + their number, then 30; the second prompts differ."""
    trajectories: list[Trajectory] = [
        make_trajectory(
            sample=sample,
            token_ids=np.array([5, 6, 7, 20 + sample, 30], dtype=np.int32),
            loss_mask=np.array([False, False, False, True, True]),
            sampler_logprobs=np.zeros(5, dtype=np.float32),
            terminal_reward=reward,
        )
        for sample, reward in enumerate(rewards)
    ]
    return TrajectoryGroup(scenario_id="s", trajectories=tuple(trajectories))


def test_the_best_trajectory_is_preferred_to_the_worst():
    """Rewards [.2, None, 1, 1]: the third against the first, after their common prompt; one has no reward."""
    compared = make_preference_pairs([siblings(0.2, None, 1.0, 1.0)])
    (pair,) = compared.pairs
    assert pair.prompt_ids.tolist() == [5, 6, 7]
    assert pair.chosen_ids.tolist() == [22, 30]
    assert pair.rejected_ids.tolist() == [20, 30]
    assert pair.chosen_mask.tolist() == [True, True]
    assert (compared.tied, compared.unscored) == (0, 1)


def test_ties_give_no_pair_and_are_counted():
    """Equal rewards, and a single reward: two groups without a pair."""
    compared = make_preference_pairs([siblings(1.0, 1.0, 1.0), siblings(None, 0.5)])
    assert compared.pairs == ()
    assert (compared.tied, compared.unscored) == (2, 1)


def test_different_prompts_belong_to_the_compared_sides():
    """The prompt is the common prefix; differing prompt tokens after it are outside the loss mask."""
    first, second = siblings(1.0, 0.0).trajectories
    heard = second.token_ids.copy()
    heard[1] = 9
    other = make_trajectory(
        sample=1,
        token_ids=heard,
        loss_mask=second.loss_mask,
        sampler_logprobs=second.sampler_logprobs,
        terminal_reward=0.0,
    )
    (pair,) = make_preference_pairs([TrajectoryGroup(scenario_id="s", trajectories=(first, other))]).pairs
    assert pair.prompt_ids.tolist() == [5]
    assert pair.rejected_ids.tolist() == [9, 7, 21, 30]
    assert pair.rejected_mask.tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_ids": np.zeros(0, dtype=np.int32)}, "has no prompt"),
        ({"chosen_mask": np.ones(3, dtype=np.bool_)}, "chosen_ids and chosen_mask have lengths 2, 3"),
        ({"rejected_mask": np.zeros(1, dtype=np.bool_)}, "rejected_mask is False everywhere"),
    ],
)
def test_a_pair_without_a_loss_is_refused(changes: dict[str, Any], message: str):
    """The message names its scenario."""
    fields: dict[str, Any] = {
        "prompt_ids": np.array([1], dtype=np.int32),
        "chosen_ids": np.array([2, 3], dtype=np.int32),
        "chosen_mask": np.ones(2, dtype=np.bool_),
        "rejected_ids": np.array([4], dtype=np.int32),
        "rejected_mask": np.ones(1, dtype=np.bool_),
        "scenario_id": "s",
    }
    with pytest.raises(DataError, match=f"preference of scenario s.*{message}"):
        TokenizedPair(**{**fields, **changes})


def _pair(prompt: int, chosen: str, rejected: str) -> TokenizedPair:
    """Prompt tokens, then completion tokens, an x for each with loss: "xx." has two with loss and one without."""
    masks = [np.array([mark == "x" for mark in side]) for side in (chosen, rejected)]
    ids = [np.arange(20 + k, 20 + k + len(mask), dtype=np.int32) for k, mask in enumerate(masks)]
    return TokenizedPair(
        prompt_ids=np.arange(8, 8 + prompt, dtype=np.int32),
        chosen_ids=ids[0],
        chosen_mask=masks[0],
        rejected_ids=ids[1],
        rejected_mask=masks[1],
        scenario_id="s",
    )


def test_tokens_are_counted_as_a_mean_over_steps(policy: TransformersPolicy):
    """Two pairs, one a step, twice: 2 + 1 and 1 + 3 completion tokens, 2·3 + 3 + 1 and 2·2 + 1 + 4 processed."""
    steps = fit(policy, [_pair(3, "xx.", "x"), _pair(2, "x", "xxx.")], pairs_per_step=1, epochs=2)
    assert len(steps) == 4
    assert {(step["tokens"], step["processed_tokens"]) for step in steps} == {(3.5, 9.5)}


def test_silent_siblings_and_those_without_a_reward_are_counted_over_all_groups():
    """Rewards [1, 0] with one empty reply, and [None, None, .5]: one and two without a pair."""
    first, second = siblings(1.0, 0.0).trajectories
    silent = replace(second, loss_mask=np.zeros_like(second.loss_mask))
    groups = [TrajectoryGroup(scenario_id="s", trajectories=(first, silent)), siblings(None, None, 0.5)]
    compared = make_preference_pairs([*groups, siblings(1.0, 0.0)])
    assert (len(compared.pairs), compared.tied, compared.unscored) == (1, 2, 3)
