"""Preference pairs of a rollout, and DPO on them by TRL's DPOTrainer.

prompt_ids     P
chosen_ids     A1 E A2        (P prompt, A completion, E reply of the environment)
chosen_mask    x  .  x        the loss is on these tokens only
rejected_ids   A1 E A2 E A3
rejected_mask  x  .  x  .  x
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DataCollatorForPreference, DPOTrainer
from trl.trainer.utils import pad

from grpo.errors import ConfigError, DataError, NoLearningSignal
from grpo.learner.trl.loop import (
    LearningRateSchedule,
    ScheduledLR,
    WithoutTelemetry,
    restored_after,
    rows_per_pass,
    run_trainer,
    training_arguments,
)
from grpo.policy.transformers.forward.packing import common_prefix_length
from grpo.trajectories import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedPair:
    """Chosen and rejected continuation of one prompt, in tokens."""

    prompt_ids: NDArray[np.int32]  # [prompt]
    chosen_ids: NDArray[np.int32]  # [chosen]
    chosen_mask: NDArray[np.bool_]  # [chosen] True for completion tokens
    rejected_ids: NDArray[np.int32]  # [rejected]
    rejected_mask: NDArray[np.bool_]  # [rejected]
    scenario_id: str
    """Scenario of the pair. Pairs of one scenario are either all trained on or all held out."""

    def __post_init__(self) -> None:
        place = f"preference of scenario {self.scenario_id}"
        if not len(self.prompt_ids):
            raise DataError(f"{place} has no prompt. At least one token must precede both sides")
        for name, ids, mask in (
            ("chosen", self.chosen_ids, self.chosen_mask),
            ("rejected", self.rejected_ids, self.rejected_mask),
        ):
            if len(ids) != len(mask):
                raise DataError(f"{place}: {name}_ids and {name}_mask have lengths {len(ids)}, {len(mask)}")
            if not mask.any():
                raise DataError(f"{place}: {name}_mask is False everywhere. Each side needs a completion token")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingResult:
    """Preference pairs of a rollout, and the numbers of groups and trajectories without one."""

    pairs: tuple[TokenizedPair, ...]
    tied: int
    """Groups with equal rewards, or with fewer than two."""
    unscored: int
    """Trajectories without a reward or without completion tokens. They are in no pair."""


def make_preference_pairs(groups: Sequence[TrajectoryGroup]) -> PairingResult:
    """Pair the best trajectory of each group with its worst, by total reward. Of equal ones the first counts.

    Rewards [.2, None, 1, 1] → the third is preferred to the first, and one is unscored.
    """
    pairs, tied, unscored = [], 0, 0
    for group in groups:
        scored = [(t.total_reward, t) for t in group.trajectories if t.total_reward is not None and t.loss_mask.any()]
        unscored += len(group.trajectories) - len(scored)
        best = max(scored, key=lambda pair: pair[0], default=None)
        worst = min(scored, key=lambda pair: pair[0], default=None)
        if best is None or worst is None or best[0] == worst[0]:
            tied += 1
        else:
            pairs.append(_make_pair(best[1], worst[1]))
    return PairingResult(pairs=tuple(pairs), tied=tied, unscored=unscored)


def _make_pair(chosen: Trajectory, rejected: Trajectory) -> TokenizedPair:
    """Make a pair. Its prompt is the common prefix of both sides before the first completion token of either."""
    start = min(int(chosen.loss_mask.argmax()), int(rejected.loss_mask.argmax()))
    start = common_prefix_length([chosen.token_ids[:start], rejected.token_ids[:start]])
    return TokenizedPair(
        prompt_ids=chosen.token_ids[:start],
        chosen_ids=chosen.token_ids[start:],
        chosen_mask=chosen.loss_mask[start:],
        rejected_ids=rejected.token_ids[start:],
        rejected_mask=rejected.loss_mask[start:],
        scenario_id=chosen.scenario_id,
    )


def train_dpo(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[TokenizedPair],
    *,
    reference: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    learning_rate: LearningRateSchedule,
    beta: float,
    epochs: int = 1,
    pairs_per_step: int | None = None,
    max_tokens: int = 16384,
    max_grad_norm: float = 1.0,
    seed: int = 0,
) -> list[dict[str, float]]:
    """Direct preference optimization (DPO, arXiv 2305.18290, equation 7) by TRL's DPOTrainer.

        −log σ(β[log(π/π_ref)(chosen) − log(π/π_ref)(rejected)])       ln 2 if π = π_ref

    Log-probabilities are summed over the completion tokens, at temperature 1. A step takes `pairs_per_step` pairs, by
    default all, in passes of up to `max_tokens` tokens. Returns for each step its loss, margin β[…], accuracy (share of
    pairs with a margin above 0), entropy, gradient norm and learning rate, and the mean over steps of the completion
    tokens and of all tokens that went through the model.

    Raises `NoLearningSignal` if there are no pairs, and `ConfigError` if beta is not above 0 or the reference is the
    model itself.
    """
    if not pairs:
        raise NoLearningSignal(
            "no learning signal: no pair can be made, because the rewards of each group are all equal"
        )
    if not beta > 0:
        raise ConfigError(f"training.beta is {beta:g}: DPO needs a value above 0, for example 0.1")
    if reference is model:
        raise ConfigError("DPO's reference policy is the model that is trained. Pass a frozen copy")
    per_step = min(pairs_per_step or len(pairs), len(pairs))
    width = max(len(p.prompt_ids) + max(len(p.chosen_ids), len(p.rejected_ids)) for p in pairs)
    per_pass = rows_per_pass(per_step, width=2 * width, max_tokens=max_tokens)
    with restored_after(model, reference), TemporaryDirectory() as folder:
        trainer = _TokenizedDPOTrainer(
            model=model,
            ref_model=reference,
            args=DPOConfig(
                **training_arguments(folder, model.device, seed=seed),
                num_train_epochs=epochs,
                per_device_train_batch_size=per_pass,
                gradient_accumulation_steps=per_step // per_pass,
                beta=beta,
                max_length=None,
                max_grad_norm=max_grad_norm,
            ),
            train_dataset=Dataset.from_list([_columns(pair) for pair in pairs]),
            processing_class=tokenizer,
            data_collator=_MaskedPairCollator(pad_token_id=tokenizer.pad_token_id),
            optimizers=(optimizer, ScheduledLR(optimizer, learning_rate)),
        )
        logged = run_trainer(trainer)
    completion_tokens = sum(int(pair.chosen_mask.sum() + pair.rejected_mask.sum()) for pair in pairs)
    processed_tokens = sum(2 * len(pair.prompt_ids) + len(pair.chosen_ids) + len(pair.rejected_ids) for pair in pairs)
    names = {
        "loss": "loss",
        "margin": "rewards/margins",
        "accuracy": "rewards/accuracies",
        "entropy": "entropy",
        "gradient_norm": "grad_norm",
        "learning_rate": "learning_rate",
    }
    sizes = {
        "tokens": completion_tokens * epochs / len(logged),
        "processed_tokens": processed_tokens * epochs / len(logged),
    }
    return [{**{name: entry[key] for name, key in names.items()}, **sizes} for entry in logged]


def _columns(pair: TokenizedPair) -> dict[str, list[int]]:
    """A row of TRL's data set, with the masks added, because TRL has none."""
    return {
        "prompt_ids": pair.prompt_ids.tolist(),
        "chosen_ids": pair.chosen_ids.tolist(),
        "rejected_ids": pair.rejected_ids.tolist(),
        "chosen_mask": pair.chosen_mask.astype(np.int64).tolist(),
        "rejected_mask": pair.rejected_mask.astype(np.int64).tolist(),
    }


class _MaskedPairCollator(DataCollatorForPreference):
    """TRL's collator, with the loss only on completion tokens instead of on all tokens after the prompt."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch: dict[str, torch.Tensor] = super().torch_call(examples)
        masks = [
            torch.tensor([0] * len(example["prompt_ids"]) + example[name])
            for name in ("chosen_mask", "rejected_mask")
            for example in examples
        ]
        batch["completion_mask"] = pad(masks, padding_value=0, padding_side="right")
        return batch


class _TokenizedDPOTrainer(WithoutTelemetry, DPOTrainer):
    """A DPOTrainer for pairs in tokens."""

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        """Keep the tokens as they were sampled."""
        return dataset
