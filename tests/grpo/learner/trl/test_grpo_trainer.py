from __future__ import annotations

import copy
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from grpo.algorithms.reductions import Denominators
from grpo.config.training import TrainingSettings
from grpo.errors import ConfigError, DataError, RatioError
from grpo.learner.batch import Sample, build_batch
from grpo.learner.engines import train_with_trl as train_with_engine
from grpo.learner.learner import Learner
from grpo.learner.trl import grpo_trainer
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.tables import read_all, write_trajectories
from grpo.trajectories import Trajectory, TrajectoryGroup, group
from tests.doubles import make_trajectory
from tests.grpo.learner.conftest import DeskRollout, perturbed
from tests.places import DESK_MODEL

TEMPERATURE = 0.8
RATE = 1e-4
"""At 1e-3 a weight whose gradient is 2e-9 may end 3e-5 apart: Adam divides it, and its rounding error, by itself."""
NORMALIZER = 24


@pytest.fixture
def rollout(policy: TransformersPolicy, tmp_path: Path) -> Path:
    """Three groups of four siblings of two turns and a last word of the customer's, as a scored Parquet file."""
    rng = np.random.default_rng(5)
    path = tmp_path / "scored.parquet"
    rows = []
    for scenario in range(3):
        prompt = rng.integers(8, 200, 5 + scenario)
        for sample, reward in enumerate(rng.permutation([0.0, 0.3, 0.5, 1.0])):
            lengths = rng.integers(2, 6, 4)  # completion, environment, completion, environment
            ids = np.concatenate([prompt, rng.integers(8, 200, lengths.sum())]).astype(np.int32)
            row = make_trajectory(
                scenario_id=f"s{scenario}",
                sample=sample,
                policy_hash=policy.hash,
                temperature=TEMPERATURE,
                token_ids=ids,
                loss_mask=np.repeat([False, True, False, True, False], [len(prompt), *lengths]),
                sampler_logprobs=np.zeros(len(ids), dtype=np.float32),
                terminal_reward=float(reward),
            )
            rows.append(replace(row, sampler_logprobs=own_logprobs(policy.model, row)))
    write_trajectories(path, rows, provenance={})
    return path


@torch.no_grad()
def own_logprobs(model: PreTrainedModel, row: Trajectory | Sample) -> np.ndarray:
    """Log-probabilities of the completion tokens, 0 elsewhere; one sequence at a time."""
    ids = torch.from_numpy(row.token_ids.astype(np.int64))
    logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0].float() / row.temperature, dim=-1)
    chosen = logprobs[:-1].gather(1, ids[1:, None])[:, 0].numpy()
    return np.concatenate([[0], chosen]).astype(np.float32) * row.loss_mask


def settings_of(**changes: Any) -> TrainingSettings:
    normalizer = {"length_normalizer": NORMALIZER} if changes.get("algorithm") == "dr_grpo" else {}
    return TrainingSettings(**{"learning_rate": RATE, "epochs": 3, **normalizer, **changes})


def train_with_trl(
    model: PreTrainedModel,
    policy: TransformersPolicy,
    groups: Sequence[TrajectoryGroup],
    settings: TrainingSettings,
    *,
    reference: PreTrainedModel | None = None,
    epsilon: float = 1e-8,
) -> list[dict[str, float]]:
    optimizer = Learner(model, settings, reference=reference).optimizer
    optimizer.param_groups[0]["eps"] = epsilon
    return grpo_trainer.train_grpo(
        model,
        policy.tokenizer,
        groups,
        settings,
        optimizer=optimizer,
        learning_rate=lambda _: settings.learning_rate,
        reference=reference,
    )


def train_with_learner(
    model: PreTrainedModel,
    policy: TransformersPolicy,
    groups: Sequence[TrajectoryGroup],
    settings: TrainingSettings,
    *,
    reference: PreTrainedModel | None = None,
    epsilon: float = 1e-8,
) -> list[dict[str, float]]:
    batch = build_batch(groups, settings, policy_hash=policy.hash)
    samples = [sample for members in batch.groups for sample in members]
    if settings.importance_sampling_cap is not None:
        samples = [replace(sample, proximal_logprobs=own_logprobs(model, sample)) for sample in samples]
    learner = Learner(model, settings, reference=reference)
    learner.optimizer.param_groups[0]["eps"] = epsilon
    of = Denominators(sequences=batch.sample_count, tokens=batch.token_count, normalizer=NORMALIZER)
    return [learner.step(samples, of, on_policy=False) for _ in range(settings.epochs)]


def distance(first: PreTrainedModel, second: PreTrainedModel) -> float:
    """Largest difference between two models in any weight."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return max(float((left - right).detach().abs().max()) for left, right in pairs)


def compare(
    policy: TransformersPolicy,
    groups: Sequence[TrajectoryGroup],
    settings: TrainingSettings,
    *,
    kl: bool = False,
    epsilon: float = 1e-8,
) -> PreTrainedModel:
    """Train two copies, one by each engine; the weights agree, and have changed enough for the comparison."""
    reference = perturbed(policy.model) if kl else None
    ours, theirs = copy.deepcopy(policy.model), copy.deepcopy(policy.model)
    mine = train_with_learner(ours, policy, groups, settings, reference=reference, epsilon=epsilon)
    other = train_with_trl(theirs, policy, groups, settings, reference=reference, epsilon=epsilon)
    assert distance(ours, theirs) < 1e-5
    assert distance(ours, policy.model) > 2e-4
    assert len(mine) == len(other) == 3
    for step, trl_step in zip(mine, other, strict=True):
        assert step.keys() - {"mismatch_kl", "masked_share"} == trl_step.keys()
        for name in ("loss", "gradient_norm", "learning_rate"):
            assert step[name] == pytest.approx(trl_step[name], abs=1e-5)
    return ours


@pytest.mark.parametrize("algorithm", grpo_trainer.LOSSES)
def test_three_steps_of_both_engines_give_the_same_weights(policy: TransformersPolicy, rollout: Path, algorithm: str):
    """The same Parquet file, the same settings: three AdamW steps, 20 times further than the engines are apart."""
    compare(policy, group(read_all([rollout])), settings_of(algorithm=algorithm))


def test_both_engines_learn_the_same_from_the_desk(desk_rollout: DeskRollout):
    """Real episodes of the shipped model, in three informative groups.

    Some dozens of the 1.3 million weights have gradients of about 5e-9, a rounding error: with Adam's epsilon at 1e-8
    it decides their steps, and they end up to 2e-4 apart; with 1e-6 none is further than 4e-6.
    """
    groups = [g for g in group(read_all([desk_rollout.scored])) if len(set(g.rewards)) > 1][:3]
    compare(load(DESK_MODEL), groups, settings_of(), epsilon=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"scale_by_std": False},
        {"weight_decay": 0.1},
        {"clip_low": 5e-4, "clip_high": 1e-3},
        {"dual_clip": 1.0005},
        {"entropy_coefficient": 0.05},
        {"top_entropy_quantile": 0.5},
        {"max_grad_norm": 0.05},
        {"adam_beta1": 0.5, "adam_beta2": 0.9},
    ],
    ids=str,
)
def test_a_setting_means_the_same_to_both_engines(policy: TransformersPolicy, rollout: Path, changes: dict[str, Any]):
    """Every setting that both have, away from its default."""
    groups = group(read_all([rollout]))
    default = copy.deepcopy(policy.model)
    train_with_learner(default, policy, groups, settings_of())
    assert distance(compare(policy, groups, settings_of(**changes)), default) > 2e-5


def test_both_engines_have_the_same_kl_penalty(policy: TransformersPolicy, rollout: Path):
    """KL to a policy that is not the one they start from."""
    compare(policy, group(read_all([rollout])), settings_of(beta=0.3), kl=True)


def test_both_engines_correct_for_another_sampler(policy: TransformersPolicy, rollout: Path):
    """Stored log-probabilities of a policy near this one, with importance weights of at most 1.05."""
    sampler = perturbed(policy.model)
    rows = [replace(row, sampler_logprobs=own_logprobs(sampler, row)) for row in read_all([rollout])]
    compare(policy, group(rows), settings_of(importance_sampling_cap=1.05))


def test_a_constant_group_has_the_same_weight_in_both_engines(policy: TransformersPolicy, rollout: Path):
    """Ours leaves it out of the passes and TRL does not; both count its sequences and tokens."""
    rows = [replace(row, terminal_reward=0.5) if row.scenario_id == "s1" else row for row in read_all([rollout])]
    compare(policy, group(rows), settings_of(algorithm="dapo"))


def test_the_step_does_not_depend_on_the_passes(policy: TransformersPolicy, rollout: Path):
    """12 rows in one pass, or a row a pass."""
    groups = group(read_all([rollout]))
    whole, cut = copy.deepcopy(policy.model), copy.deepcopy(policy.model)
    train_with_trl(whole, policy, groups, settings_of())
    train_with_trl(cut, policy, groups, settings_of(microbatch_tokens=64))
    assert distance(whole, cut) < 1e-5


def test_the_steps_use_the_given_rates_and_moments(policy: TransformersPolicy, rollout: Path):
    """Rate by step, from an optimizer that a rollout before has warmed up: another step than a fresh one's."""
    groups, settings = group(read_all([rollout])), settings_of(epochs=2)
    fresh, warm = copy.deepcopy(policy.model), copy.deepcopy(policy.model)
    for model, start in ((fresh, 0.0), (warm, 0.5)):
        optimizer = Learner(model, settings).optimizer
        for parameter in model.parameters():
            optimizer.state[parameter] = {
                "step": torch.tensor(10.0),
                "exp_avg": torch.full_like(parameter, start),
                "exp_avg_sq": torch.ones_like(parameter),
            }
        asked: list[int] = []

        def rate(step: int, asked: list[int] = asked) -> float:
            asked.append(step)
            return RATE / (step + 1)

        steps = grpo_trainer.train_grpo(
            model, policy.tokenizer, groups, settings, optimizer=optimizer, learning_rate=rate
        )
        assert asked == [0, 1, 2]
        assert [step["learning_rate"] for step in steps] == [RATE, RATE / 2]
        assert all(float(state["step"]) == 12 for state in optimizer.state.values())
    assert distance(fresh, warm) > RATE / 10


def test_the_rates_of_both_engines_follow_one_schedule(policy: TransformersPolicy, rollout: Path):
    """Linear over 4 iterations of two steps: the second iteration has 3/4 and 5/8 of the rate, and its steps are the
    third and fourth of six of the warm-up."""
    settings = settings_of(epochs=2, iterations=4, lr_scheduler_type="linear", warmup_steps=6)
    learner = Learner(copy.deepcopy(policy.model), settings)
    learner.step_count = 2
    steps, _ = train_with_engine(learner, policy.tokenizer, group(read_all([rollout])), seed=0, iteration=1)
    assert [step["learning_rate"] for step in steps] == pytest.approx([RATE * 3 / 6 * 3 / 4, RATE * 4 / 6 * 5 / 8])


def test_log_probabilities_of_another_policy_stop_the_run(policy: TransformersPolicy, rollout: Path):
    """The row is named, and no weight has moved."""
    rows = read_all([rollout])
    rows[5] = replace(rows[5], sampler_logprobs=rows[5].sampler_logprobs - 0.01 * rows[5].loss_mask)
    model = copy.deepcopy(policy.model)
    with pytest.raises(RatioError, match=r"1 of 12 rows.*scenario s1 sample 1"):
        train_with_trl(model, policy, group(rows), settings_of())
    assert distance(model, policy.model) == 0


def test_nothing_but_the_weights_is_changed(
    policy: TransformersPolicy, rollout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Config, forward pass and mode are as before, and no file is written."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    reference = perturbed(policy.model)
    before = policy.model.config.to_dict(), policy.model.generation_config.to_dict()
    train_with_trl(policy.model, policy, group(read_all([rollout])), settings_of(beta=0.1), reference=reference)
    assert (policy.model.config.to_dict(), policy.model.generation_config.to_dict()) == before
    assert not policy.model.training
    assert "forward" not in vars(policy.model) | vars(reference)
    assert not list(empty.iterdir())


def test_no_telemetry_is_sent(policy: TransformersPolicy, rollout: Path, monkeypatch: pytest.MonkeyPatch):
    """Not even where the environment enables TRL's telemetry."""
    asked: list[object] = []

    def look_up(*where: object, **_: object) -> list[object]:
        asked.append(where)
        raise socket.gaierror("no network")

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    train_with_trl(policy.model, policy, group(read_all([rollout])), settings_of())
    assert not asked


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "rloo", "epochs": 1}, "engine trl does not support rloo, only grpo"),
        ({"algorithm": "ppo"}, "engine trl does not support ppo"),
        ({"credit_assignment": "turn"}, "credit_assignment has no effect with engine trl"),
        ({"baseline": "leave_one_out"}, "baseline has no effect with engine trl"),
        ({"reward_clip": 1.0}, "reward_clip has no effect"),
        ({"overlong_limit": 9}, "overlong_limit has no effect"),
        ({"groups_per_step": 1}, "groups_per_step has no effect"),
        ({"num_mini_batches": 2}, "num_mini_batches has no effect"),
        ({"lora": {}}, "lora has no effect"),
        ({"processes": 2}, "processes has no effect"),
    ],
)
def test_settings_that_trl_does_not_have_are_refused(changes: dict[str, Any], message: str):
    """The config is refused by the name of the setting."""
    with pytest.raises(ValueError, match=message):
        settings_of(engine="trl", **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_entropy_quantile": 0.5, "microbatch_tokens": 64}, "12 rows take 6 passes"),
        ({"beta": 0.1}, "training.beta 0.1 .* reference policy. Pass one"),
    ],
)
def test_rollouts_and_settings_with_another_meaning_in_trl_are_refused(
    policy: TransformersPolicy, rollout: Path, changes: dict[str, Any], message: str
):
    """Before any step."""
    settings = settings_of(**changes)
    with pytest.raises(ConfigError, match=message):
        grpo_trainer.train_grpo(
            policy.model,
            policy.tokenizer,
            group(read_all([rollout])),
            settings,
            optimizer=torch.optim.AdamW(policy.model.parameters()),
            learning_rate=lambda _: RATE,
        )


@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        (4, None, r"scenario s1 has 3 trajectories.*groups of one size"),
        (4, {"terminal_reward": None}, "scenario s1 sample 0 has no reward"),
        (4, {"loss_mask": None}, "scenario s1 sample 0: .* a completion after it"),
        (4, {"temperature": 1.0}, r"sampled at temperatures \[0.8, 1.0\]"),
    ],
)
def test_a_rollout_that_trl_does_not_support_is_refused(
    policy: TransformersPolicy, rollout: Path, number: int, changes: dict[str, Any] | None, message: str
):
    """Groups of two sizes, a trajectory without a reward or a completion, two temperatures."""
    rows = read_all([rollout])
    if changes is None:
        del rows[number]
    else:
        silent = {"loss_mask": np.zeros_like(rows[number].loss_mask)}
        rows[number] = replace(rows[number], **(silent if "loss_mask" in changes else changes))
    with pytest.raises(DataError, match=message):
        train_with_trl(policy.model, policy, group(rows), settings_of())
