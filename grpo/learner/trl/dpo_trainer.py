"""What is better and what is worse after the same prompt, and DPO on it through TRL's trainer.

prompt_ids     P
chosen_ids     A1 E A2        (A what the policy says, E what it hears)
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
    run,
    training_arguments,
)
from grpo.trajectories import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedPair:
    """Two ways in which a conversation went on, the better one first; from siblings, or from a labelled data set."""

    prompt_ids: NDArray[np.int32]  # [prompt]
    chosen_ids: NDArray[np.int32]  # [chosen]
    chosen_mask: NDArray[np.bool_]  # [chosen] True where the policy speaks
    rejected_ids: NDArray[np.int32]  # [rejected]
    rejected_mask: NDArray[np.bool_]  # [rejected]
    scenario_id: str
    """Where it comes from; pairs of one scenario are not torn apart into training and held-out ones."""

    def __post_init__(self) -> None:
        place = f"preference of scenario {self.scenario_id}"
        if not len(self.prompt_ids):
            raise DataError(f"{place} has no prompt; at least one token must stand before what is compared")
        for name, ids, mask in (
            ("chosen", self.chosen_ids, self.chosen_mask),
            ("rejected", self.rejected_ids, self.rejected_mask),
        ):
            if len(ids) != len(mask):
                raise DataError(f"{place}: {name}_ids and {name}_mask have lengths {len(ids)}, {len(mask)}")
            if not mask.any():
                raise DataError(f"{place}: {name}_mask is False everywhere; the policy must say something in both")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingResult:
    """The pairs of a rollout, and what gave none."""

    pairs: tuple[TokenizedPair, ...]
    tied: int
    """Groups in which no two siblings with a reward differ in it."""
    unscored: int
    """Siblings without a reward, or that said nothing; they are in no pair."""


def make_preference_pairs(groups: Sequence[TrajectoryGroup]) -> PairingResult:
    """Of each group the best sibling and the worst, by total reward; of equals the first.

    Rewards [.2, None, 1, 1] → the third is preferred to the first, one is unscored.
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
            pairs.append(_preference(best[1], worst[1]))
    return PairingResult(pairs=tuple(pairs), tied=tied, unscored=unscored)


def _preference(chosen: Trajectory, rejected: Trajectory) -> TokenizedPair:
    """The prompt is what both share before either spoke; an environment may go on differently after it."""
    start = min(int(chosen.loss_mask.argmax()), int(rejected.loss_mask.argmax()))
    same = chosen.token_ids[:start] == rejected.token_ids[:start]
    start = start if same.all() else int(same.argmin())
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
    """Make what was preferred likelier than what was not (DPO, arXiv 2305.18290, equation 7), by TRL's DPOTrainer.

        −log σ(β[log(π/π_ref)(chosen) − log(π/π_ref)(rejected)])       ln 2 where π = π_ref

    Log-probabilities are summed over the tokens that the policy said, at temperature 1. A step takes
    `pairs_per_step` pairs, by default all, in passes of at most `max_tokens` tokens. Returns of each step its loss,
    margin β[…], accuracy (share of pairs with a margin above 0), entropy, gradient norm and learning rate, and the mean
    over steps of the tokens that were said and that passed through the model.
    Raises `NoLearningSignal` without pairs, `ConfigError` for a beta of 0 or a reference that is the model itself.
    """
    if not pairs:
        raise NoLearningSignal("no learning signal: no two siblings have different rewards, so there are no pairs")
    if not beta > 0:
        raise ConfigError(f"training.beta is {beta:g}: DPO needs one above 0, for example 0.1")
    if reference is model:
        raise ConfigError("DPO's reference policy is the one that is trained; give a frozen copy")
    per_step = min(pairs_per_step or len(pairs), len(pairs))
    width = max(len(p.prompt_ids) + max(len(p.chosen_ids), len(p.rejected_ids)) for p in pairs)
    per_pass = rows_per_pass(per_step, width=2 * width, max_tokens=max_tokens)
    with restored_after(model, reference), TemporaryDirectory() as folder:
        trainer = _TokenizedPairs(
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
            data_collator=_SpokenPairs(pad_token_id=tokenizer.pad_token_id),
            optimizers=(optimizer, ScheduledLR(optimizer, learning_rate)),
        )
        logged = run(trainer)
    said = sum(int(pair.chosen_mask.sum() + pair.rejected_mask.sum()) for pair in pairs)
    passed = sum(2 * len(pair.prompt_ids) + len(pair.chosen_ids) + len(pair.rejected_ids) for pair in pairs)
    names = {
        "loss": "loss",
        "margin": "rewards/margins",
        "accuracy": "rewards/accuracies",
        "entropy": "entropy",
        "gradient_norm": "grad_norm",
        "learning_rate": "learning_rate",
    }
    sizes = {"tokens": said * epochs / len(logged), "passed": passed * epochs / len(logged)}
    return [{**{ours: entry[theirs] for ours, theirs in names.items()}, **sizes} for entry in logged]


def _columns(pair: TokenizedPair) -> dict[str, list[int]]:
    """A pair in the words of TRL's collator, and the masks, which it does not know."""
    return {
        "prompt_ids": pair.prompt_ids.tolist(),
        "chosen_ids": pair.chosen_ids.tolist(),
        "rejected_ids": pair.rejected_ids.tolist(),
        "chosen_mask": pair.chosen_mask.astype(np.int64).tolist(),
        "rejected_mask": pair.rejected_mask.astype(np.int64).tolist(),
    }


class _SpokenPairs(DataCollatorForPreference):
    """TRL's collator, with the loss on what the policy said instead of on all that came after the prompt."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch: dict[str, torch.Tensor] = super().torch_call(examples)
        masks = [
            torch.tensor([0] * len(example["prompt_ids"]) + example[name])
            for name in ("chosen_mask", "rejected_mask")
            for example in examples
        ]
        batch["completion_mask"] = pad(masks, padding_value=0, padding_side="right")
        return batch


class _TokenizedPairs(WithoutTelemetry, DPOTrainer):
    """A DPOTrainer for pairs that are tokens already."""

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        """Leave the tokens as they were sampled."""
        return dataset
