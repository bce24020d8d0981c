"""GRPO updates by TRL's GRPOTrainer on stored trajectories: `training.engine: trl`.

    ours                TRL
    sampled tokens      prompt_ids up to the first completion token, completion_ids from there
    loss_mask           tool_mask
    sampler_logprobs    sampling_per_token_logps
    total_reward        result of the only reward function; TRL computes the advantages

TRL finds the groups by position, so they must have equal sizes. If TRL does not support a setting or a rollout, an
error is raised before any step.
"""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from grpo.algorithms.catalog import make_algorithm
from grpo.algorithms.losses import importance_ratio
from grpo.config.training import TrainingSettings
from grpo.errors import ConfigError, DataError
from grpo.learner.logprobs import check_ratio
from grpo.learner.trl.loop import (
    LearningRateSchedule,
    ScheduledLR,
    WithoutTelemetry,
    restored_after,
    rows_per_pass,
    run_trainer,
    training_arguments,
)
from grpo.trajectories import Trajectory, TrajectoryGroup

LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo"},
    "cispo": {"loss_type": "cispo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
}
"""TRL's settings of each algorithm."""


def train_grpo(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    groups: Sequence[TrajectoryGroup],
    settings: TrainingSettings,
    *,
    optimizer: torch.optim.Optimizer,
    learning_rate: LearningRateSchedule,
    reference: PreTrainedModel | None = None,
    seed: int = 0,
) -> list[dict[str, float]]:
    """Take one optimizer step per epoch on all groups; returns the metrics of `Learner.step` for each step.

    The optimizer belongs to the caller, so its moments carry over to the next rollout. `reference` is required if
    `settings.beta` is not 0. Raises `ConfigError` if TRL does not support a setting, `DataError` if it does not support
    a rollout, and `RatioError` if the stored log-probabilities are not the model's.
    """
    with restored_after(model, *([reference] if reference is not None else [])), TemporaryDirectory() as folder:
        trainer = make_trainer(
            model,
            tokenizer,
            groups,
            settings,
            optimizer=optimizer,
            learning_rate=learning_rate,
            reference=reference,
            seed=seed,
            folder=folder,
        )
        logged = run_trainer(trainer)
    completion_tokens = sum(row.completion_tokens for row in trainer.rows)
    processed_tokens = sum(len(row.token_ids) for row in trainer.rows)
    return [_metrics(entry, tokens=completion_tokens, processed_tokens=processed_tokens) for entry in logged]


def make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    groups: Sequence[TrajectoryGroup],
    settings: TrainingSettings,
    *,
    optimizer: torch.optim.Optimizer,
    learning_rate: LearningRateSchedule,
    reference: PreTrainedModel | None,
    seed: int,
    folder: str,
) -> StoredRolloutTrainer:
    """TRL's trainer on these trajectories. It patches the models, so use `restored_after`. Raises as `train_grpo`."""
    rows = _rows(groups)
    if settings.beta and reference is None:
        raise ConfigError(f"training.beta {settings.beta:g} needs a reference policy. Pass one")
    trainer = StoredRolloutTrainer(
        model=model,
        args=_arguments(rows, len(groups[0].trajectories), settings, folder, model.device, seed),
        reward_funcs=_stored_reward,
        train_dataset=Dataset.from_dict({"prompt": [""] * len(groups)}),
        processing_class=tokenizer,
        optimizers=(optimizer, ScheduledLR(optimizer, learning_rate)),
    )
    trainer.set_rollouts(rows, settings, reference)
    return trainer


def _rows(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    """The trajectories of all groups, in TRL's order."""
    sizes = {len(group.trajectories) for group in groups}
    if len(sizes) != 1 or min(sizes) < 2:
        odd = next((g for g in groups if len(g.trajectories) != len(groups[0].trajectories)), groups[0])
        raise DataError(
            f"scenario {odd.scenario_id} has {len(odd.trajectories)} trajectories: engine trl needs groups of one "
            f"size, at least 2, and these have {sorted(sizes)}. Leave training.engine out"
        )
    rows = [trajectory for group in groups for trajectory in group.trajectories]
    for row in rows:
        if row.total_reward is None:
            raise DataError(f"{row.place} has no reward. Leave training.engine out, because engine trl cannot mask it")
        if not row.loss_mask.any() or row.loss_mask[0]:
            raise DataError(f"{row.place}: engine trl needs a prompt, and a completion after it")
    temperatures = sorted({row.temperature for row in rows})
    if len(temperatures) > 1:
        raise DataError(
            f"sampled at temperatures {temperatures}: leave training.engine out, because engine trl has one "
            "temperature for all"
        )
    return rows


def _arguments(
    rows: Sequence[Trajectory],
    group_size: int,
    settings: TrainingSettings,
    folder: str,
    device: torch.device,
    seed: int,
) -> GRPOConfig:
    """TRL's configuration from the settings."""
    algorithm = make_algorithm(
        settings.algorithm,
        scale_by_std=settings.scale_by_std,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
    )
    width = max(map(_prompt_length, rows)) + max(len(row.token_ids) - _prompt_length(row) for row in rows)
    per_pass = rows_per_pass(len(rows), width=width, max_tokens=settings.microbatch_tokens)
    if per_pass < len(rows) and (settings.entropy_coefficient or settings.top_entropy_quantile < 1):
        raise ConfigError(
            f"engine trl measures entropy pass by pass, and {len(rows)} rows take {len(rows) // per_pass} passes. "
            "Raise training.microbatch_tokens, or leave entropy_coefficient and top_entropy_quantile out"
        )
    return GRPOConfig(
        **training_arguments(folder, device, seed=seed),
        **LOSSES[settings.algorithm],
        max_steps=settings.epochs,
        num_iterations=settings.epochs,
        num_generations=group_size,
        per_device_train_batch_size=per_pass,
        gradient_accumulation_steps=len(rows) // per_pass,
        shuffle_dataset=False,
        temperature=rows[0].temperature,
        max_completion_length=settings.length_normalizer,
        scale_rewards="group" if algorithm.scale_by_std else "none",
        epsilon=algorithm.clip_low,
        epsilon_high=algorithm.clip_high,
        delta=settings.dual_clip,
        use_bias_correction_kl=True,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=settings.importance_sampling_cap or 1.0,
        entropy_coef=settings.entropy_coefficient,
        top_entropy_quantile=settings.top_entropy_quantile,
        max_grad_norm=settings.max_grad_norm,
    )


def _prompt_length(row: Trajectory) -> int:
    """Tokens before the first completion token."""
    return int(row.loss_mask.argmax())


def _stored_reward(reward: list[float], **_: Any) -> list[float]:
    """The rewards that are stored with the trajectories."""
    return reward


class StoredRolloutTrainer(WithoutTelemetry, GRPOTrainer):
    """A GRPOTrainer that reads stored completions, log-probabilities and rewards instead of sampling."""

    def set_rollouts(
        self, rows: Sequence[Trajectory], settings: TrainingSettings, reference: PreTrainedModel | None
    ) -> None:
        """Set the trajectories to train on."""
        self.rows, self.settings = rows, settings
        self.use_vllm = True  # so that the loss reads stored log-probabilities. TRL's constructor would start a server
        if settings.beta and reference is not None:  # otherwise TRL would load one from the model's own address
            add_fused_lm_head(reference, temperature=self.temperature)
            self.beta, self.ref_model = settings.beta, reference

    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        """Return the stored rollouts."""
        pairs = [(row, _prompt_length(row)) for row in self.rows]
        return (
            [row.token_ids[:start].tolist() for row, start in pairs],
            [row.token_ids[start:].tolist() for row, start in pairs],
            [row.loss_mask[start:].astype(np.int64).tolist() for row, start in pairs],
            [row.place for row in self.rows],  # texts, only for the log
            [row.sampler_logprobs[start:].tolist() for row, start in pairs],
            {"reward": [row.total_reward for row in self.rows]},
            None,  # images
            [],  # images from tools
        )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch. Without an importance sampling cap, the stored log-probabilities become its old ones."""
        batch = super()._generate_and_score_completions(inputs)
        if self.settings.importance_sampling_cap is None:
            policy, stored = batch["old_per_token_logps"], batch["sampling_per_token_logps"]
            mask = batch["completion_mask"] * batch["tool_mask"]
            off = ((((policy - stored).exp() - 1).abs() * mask).sum(dim=1) / mask.sum(dim=1)).tolist()
            rows = [(distance, row.place) for distance, row in zip(off, self.rows, strict=True)]
            check_ratio(rows, tolerance=self.settings.ratio_tolerance)
            batch["old_per_token_logps"] = stored
            batch["importance_sampling_ratio"] = torch.ones_like(stored)
        return batch

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any, Any]:
        logprobs, entropy, auxiliary = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self.policy_logprobs = logprobs.detach()
        return logprobs, entropy, auxiliary

    def _compute_loss(self, model: PreTrainedModel, inputs: dict[str, Any]) -> torch.Tensor:
        """Compute TRL's loss, and log the mean importance ratio, because TRL does not log it."""
        loss: torch.Tensor = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        log_ratio = (self.policy_logprobs - inputs["old_per_token_logps"])[mask]
        by_sequence = self.importance_sampling_level == "sequence"
        ratio = importance_ratio(log_ratio, mask.sum(dim=1), by_sequence=by_sequence)
        self._metrics["train"]["ratio"].append(float(ratio.mean()))
        return loss


def _metrics(logged: dict[str, float], *, tokens: int, processed_tokens: int) -> dict[str, float]:
    """Metrics of a step with the names of `Learner.step`. If a step has several passes, TRL averages their means."""
    clipped = "cispo_clip_ratio" if "cispo_clip_ratio" in logged else "clip_ratio/region_mean"
    return {
        "ratio": logged["ratio"],
        "clip_share": logged[clipped],
        "entropy": logged["entropy"],
        "loss": logged["loss"],
        "tokens": tokens,
        "processed_tokens": processed_tokens,
        "gradient_norm": logged["grad_norm"],
        "learning_rate": logged["learning_rate"],
    }
