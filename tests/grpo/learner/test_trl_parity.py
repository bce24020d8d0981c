"""The contract with TRL 1.16: on the same batch, loss and gradient of `GRPOTrainer._compute_loss` are ours to 1e-5.

So are the advantages that it computes from the same rewards.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import PreTrainedModel
from trl.trainer.distillation_trainer import _chunked_divergence_loss

from grpo.algorithms.advantages import group_advantages
from grpo.algorithms.reductions import Denominators
from grpo.config.training import TrainingSettings
from grpo.learner.batch import Sample
from grpo.learner.distillation import Teacher
from grpo.learner.learner import Learner
from grpo.learner.logprobs import compute_logprobs
from grpo.learner.teacher_prompts import TeacherSequence
from grpo.learner.trl import grpo_trainer
from grpo.learner.trl.loop import restored_after
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.trajectories import group
from tests.doubles import make_trajectory
from tests.grpo.learner.conftest import perturbed

NORMALIZER = 24
TEMPERATURE = 0.8
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
}
# ours, TRL's
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "kl": ({"beta": 0.3}, {"beta": 0.3}),
    "importance correction": ({"importance_sampling_cap": 1.05}, {}),
    "asymmetric clip": ({"clip_low": 0.1, "clip_high": 0.3}, {"epsilon": 0.1, "epsilon_high": 0.3}),
    "dual clip": ({"dual_clip": 1.1}, {"delta": 1.1}),
    "entropy bonus": ({"entropy_coefficient": 0.2}, {"entropy_coef": 0.2}),
    "high-entropy tokens": ({"top_entropy_quantile": 0.5}, {"top_entropy_quantile": 0.5}),
}


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


@pytest.fixture(scope="module")
def samples(policy: TransformersPolicy) -> list[Sample]:
    """Two prompts with two siblings each; two turns with a reply between; a sampler and an old policy near this one."""
    rng = np.random.default_rng(5)
    made = []
    for index in range(4):
        prompt = np.random.default_rng(index // 2).integers(8, 200, 5)
        lengths = rng.integers(2, 6, 3)  # completion, environment, completion
        mask = np.repeat([False, True, False, True], [5, *lengths])
        sample = Sample(
            token_ids=np.concatenate([prompt, rng.integers(8, 200, lengths.sum())]).astype(np.int32),
            loss_mask=mask,
            sampler_logprobs=np.zeros(len(mask), dtype=np.float32),
            advantages=np.float32(rng.normal()) * mask,
            temperature=TEMPERATURE,
            place=f"row {index}",
        )
        with torch.no_grad():
            own = compute_logprobs(policy.model, [sample]).logprobs.numpy()

        def near(own: np.ndarray, mask: np.ndarray, spread: float) -> np.ndarray:
            logprobs = np.zeros(len(mask), dtype=np.float32)
            logprobs[mask] = own + rng.normal(0, spread, len(own)).astype(np.float32)
            return logprobs

        made.append(replace(sample, sampler_logprobs=near(own, mask, 0.3), proximal_logprobs=near(own, mask, 0.3)))
    return made


def _reference(policy: TransformersPolicy) -> PreTrainedModel:
    torch.manual_seed(1)
    model = copy.deepcopy(policy.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def _pad(rows: list[np.ndarray], *, left: bool) -> torch.Tensor:
    width = max(map(len, rows))
    padded = [np.pad(row, (width - len(row), 0) if left else (0, width - len(row))) for row in rows]
    return torch.from_numpy(np.stack(padded))


def _inputs(samples: list[Sample], reference: PreTrainedModel, cap: float | None) -> dict[str, torch.Tensor]:
    starts = [int(sample.loss_mask.argmax()) for sample in samples]
    pairs = list(zip(samples, starts, strict=True))
    with torch.no_grad():
        distant = [compute_logprobs(reference, [sample]).logprobs.numpy() for sample in samples]
    laid = [np.zeros(len(sample.loss_mask), dtype=np.float32) for sample in samples]
    for values, sample, logprobs in zip(laid, samples, distant, strict=True):
        values[sample.loss_mask] = logprobs
    old = [sample.proximal_logprobs for sample in samples]
    inputs = {
        "prompt_ids": _pad([s.token_ids[:k].astype(np.int64) for s, k in pairs], left=True),
        "prompt_mask": _pad([np.ones(k, dtype=np.int64) for k in starts], left=True),
        "completion_ids": _pad([s.token_ids[k:].astype(np.int64) for s, k in pairs], left=False),
        "completion_mask": _pad([np.ones(len(s.token_ids) - k, dtype=np.int64) for s, k in pairs], left=False),
        "tool_mask": _pad([s.loss_mask[k:].astype(np.int64) for s, k in pairs], left=False),
        "advantages": torch.tensor([float(s.advantages[k]) for s, k in pairs]),
        "old_per_token_logps": _pad([o[k:] for o, k in zip(old, starts, strict=True)], left=False),  # type: ignore[index]
        "ref_per_token_logps": _pad([v[k:] for v, k in zip(laid, starts, strict=True)], left=False),
        "num_items_in_batch": torch.tensor(sum(int(s.loss_mask.sum()) for s in samples)),
    }
    if cap is not None:
        sampler = _pad([s.sampler_logprobs[k:] for s, k in pairs], left=False)
        inputs["importance_sampling_ratio"] = (inputs["old_per_token_logps"] - sampler).exp().clamp(max=cap)
    return inputs


def _theirs(
    policy: TransformersPolicy, samples: list[Sample], folder: Path, cap: float | None, **settings: Any
) -> tuple[float, torch.Tensor]:
    from trl import GRPOConfig, GRPOTrainer

    model = copy.deepcopy(policy.model)
    arguments = GRPOConfig(
        output_dir=str(folder),
        report_to=[],
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        per_device_train_batch_size=len(samples),
        num_generations=len(samples),
        max_completion_length=NORMALIZER,
        temperature=TEMPERATURE,
        **settings,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = GRPOTrainer(
            model=model,
            args=arguments,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            train_dataset=Dataset.from_dict({"prompt": ["a"] * len(samples)}),
            processing_class=policy.tokenizer,
        )
        trainer.use_vllm = cap is not None
        trainer.current_gradient_accumulation_steps = 1
        model.train()
        model.zero_grad()
        loss = trainer._compute_loss(model, _inputs(samples, _reference(policy), cap))
        loss.backward()
    return float(loss.detach()), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _ours(policy: TransformersPolicy, samples: list[Sample], **settings: Any) -> tuple[float, torch.Tensor]:
    normalizer = {"length_normalizer": NORMALIZER} if settings["algorithm"] == "dr_grpo" else {}
    plan = TrainingSettings(learning_rate=0, max_grad_norm=1e9, **normalizer, **settings)
    learner = Learner(copy.deepcopy(policy.model), plan, reference=_reference(policy) if plan.beta else None)
    tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
    of = Denominators(sequences=len(samples), tokens=tokens, normalizer=NORMALIZER)
    metrics = learner.step(samples, of, on_policy=False)
    gradient = torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None])
    return metrics["loss"], gradient


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_loss_and_gradient_are_those_of_trl(
    policy: TransformersPolicy, samples: list[Sample], tmp_path: Path, algorithm: str, variant: str
):
    """Same batch, same old and sampler log-probabilities, same reference."""
    ours, theirs = VARIANTS[variant]
    if algorithm == "cispo":  # neither side reads these; ours refuses them
        ours = {name: value for name, value in ours.items() if name not in ("clip_low", "dual_clip")}
    loss, gradient = _ours(policy, samples, algorithm=algorithm, **ours)
    expected, exact = _theirs(
        policy, samples, tmp_path, ours.get("importance_sampling_cap"), **{**ALGORITHMS[algorithm], **theirs}
    )
    assert loss == pytest.approx(expected, abs=1e-5)
    assert torch.allclose(gradient, exact, atol=1e-5)
    assert exact.abs().max() > 1e-3  # there is something to agree on


@pytest.mark.parametrize("scale_by_std", [True, False])
def test_advantages_are_those_of_trl(policy: TransformersPolicy, tmp_path: Path, scale_by_std: bool):
    """`scale_rewards` group and none, over groups of any spread, one of them with none.

    At a spread of 1e-3 the float32 in which TRL keeps rewards is itself 3e-5 off."""
    rng = np.random.default_rng(6)
    spreads = np.array([1.0, 10.0, 0.1, 0.01, 0.0])[:, None]
    rewards = 0.5 + spreads * rng.normal(size=(5, 4))
    rows = [
        make_trajectory(
            scenario_id=f"s{number}",
            sample=sample,
            token_ids=np.array([9, 10 + sample], dtype=np.int32),
            loss_mask=np.array([False, True]),
            sampler_logprobs=np.zeros(2, dtype=np.float32),
            terminal_reward=float(reward),
        )
        for number, siblings in enumerate(rewards)
        for sample, reward in enumerate(siblings)
    ]
    settings = TrainingSettings(scale_by_std=scale_by_std, ratio_tolerance=1e9)  # these tokens were never sampled
    with restored_after(policy.model):
        trainer = grpo_trainer.make_trainer(
            policy.model,
            policy.tokenizer,
            group(rows),
            settings,
            optimizer=torch.optim.AdamW(policy.model.parameters()),
            learning_rate=lambda _: 0.0,
            reference=None,
            seed=0,
            folder=str(tmp_path),
        )
        batch = trainer._generate_and_score_completions([{"prompt": ""} for _ in rows])
    ours = np.concatenate([group_advantages(siblings, scale_by_std=scale_by_std) for siblings in rewards])
    assert batch["advantages"].numpy() == pytest.approx(ours, abs=1e-5)
    assert np.abs(ours).max() > 1


def test_a_distillation_has_the_loss_and_gradient_of_trl(policy: TransformersPolicy, samples: list[Sample]):
    """TRL's DistillationTrainer with beta 1, its reverse KL, as a mean over all tokens."""
    teacher = perturbed(policy.model)
    taught = [
        replace(
            sample,
            teacher=TeacherSequence(
                token_ids=sample.token_ids, loss_mask=sample.loss_mask, temperature=sample.temperature
            ),
        )
        for sample in samples
    ]
    tokens = sum(int(sample.loss_mask.sum()) for sample in taught)
    plan = TrainingSettings(algorithm="dapo", distillation={"teacher_model_name_or_path": "models/teacher"})
    learner = Learner(policy.model, plan, teacher=Teacher(model=teacher))
    policy.model.zero_grad()
    loss, *_ = learner.loss(taught, Denominators(sequences=len(taught), tokens=tokens, normalizer=NORMALIZER))
    loss.backward()
    ours = [parameter.grad.clone() for parameter in policy.model.parameters() if parameter.grad is not None]
    policy.model.zero_grad()
    published = torch.zeros(())
    for sample in taught:
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
        with torch.no_grad():
            theirs = teacher.model(input_ids=ids).last_hidden_state[:, :-1]
        part, *_ = _chunked_divergence_loss(
            policy.model.model(input_ids=ids).last_hidden_state[:, :-1],
            theirs,
            policy.model.lm_head.weight,
            teacher.lm_head.weight.detach(),
            torch.from_numpy(sample.loss_mask[None, 1:]),
            beta=1.0,
            num_items_in_batch=tokens,
            temperature=sample.temperature,
        )
        published = published + part
    published.backward()
    assert float(loss.detach()) == pytest.approx(float(published.detach()), abs=1e-6)
    for mine, parameter in zip(ours, [p for p in policy.model.parameters() if p.grad is not None], strict=True):
        assert torch.allclose(mine, parameter.grad, atol=1e-5)
    assert max(float(gradient.abs().max()) for gradient in ours) > 1e-3
