"""A reward learned from preferences: one number a conversation, by TRL's RewardTrainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from transformers import PreTrainedModel
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer

from grpo.errors import DataError, PolicyError
from grpo.learner.trl.dpo_trainer import TokenizedPair
from grpo.learner.trl.loop import WithoutTelemetry, rows_per_pass, run, training_arguments
from grpo.policy.transformers.model import load_tokenizer
from grpo.rewards.learned.metrics import wilson_interval


class RewardModelReport(BaseModel):
    """How well a reward model tells better from worse on scenarios that it did not see."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trained_pairs: int
    heldout_pairs: int
    accuracy: float
    """Share of held-out pairs whose better side has the higher reward."""
    low: float
    """Bounds of its 95 % interval."""
    high: float
    loss: float
    """−log σ(r_chosen − r_rejected) of the last training step; ln 2 is guessing."""


def train_reward_model(
    pairs: Sequence[TokenizedPair],
    base: Path,
    target: Path,
    *,
    learning_rate: float = 1e-4,
    epochs: int = 1,
    pairs_per_step: int = 32,
    max_tokens: int = 16384,
    validation_fraction: float = 0.2,
    seed: int = 0,
) -> RewardModelReport:
    """Train a head with one output on the model in `base`, backbone included, and write it to `target` as safetensors.

    Bradley–Terry (1952): −log σ(r(prompt, chosen) − r(prompt, rejected)), r read at the last token. Scenarios, not
    pairs, are held out, a `validation_fraction` of them drawn by `seed`. Raises `DataError` when one of
    the two sides stays empty, `PolicyError` when `base` holds no model that can be given such a head.
    """
    trained, heldout = _hold_out(pairs, share=validation_fraction, seed=seed)
    tokenizer = load_tokenizer(base)
    if not any(base.glob("*.safetensors")):
        raise PolicyError(f"no *.safetensors in {base}; pickled weights are refused: convert them to safetensors")
    per_step = min(pairs_per_step, len(trained))
    width = max(len(p.prompt_ids) + max(len(p.chosen_ids), len(p.rejected_ids)) for p in trained)
    per_pass = rows_per_pass(per_step, width=2 * width, max_tokens=max_tokens)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with TemporaryDirectory() as folder:
        trainer = _SilentRewardTrainer(
            model=str(base),
            args=RewardConfig(
                **training_arguments(folder, device, seed=seed),
                num_train_epochs=epochs,
                per_device_train_batch_size=per_pass,
                gradient_accumulation_steps=per_step // per_pass,
                learning_rate=learning_rate,
                lr_scheduler_type="constant",
                max_length=None,
                model_init_kwargs={"use_safetensors": True, "local_files_only": True},
            ),
            train_dataset=Dataset.from_list(
                [{"chosen_ids": _chosen(pair).tolist(), "rejected_ids": _rejected(pair).tolist()} for pair in trained]
            ),
            processing_class=tokenizer,
        )
        logged = run(trainer)
    model = trainer.model.eval()
    right = sum(reward(model, _chosen(pair)) > reward(model, _rejected(pair)) for pair in heldout)
    model.save_pretrained(target, safe_serialization=True)
    tokenizer.save_pretrained(target)
    low, high = wilson_interval(right, len(heldout))
    return RewardModelReport(
        trained_pairs=len(trained),
        heldout_pairs=len(heldout),
        accuracy=right / len(heldout),
        low=low,
        high=high,
        loss=logged[-1]["loss"],
    )


@torch.no_grad()
def reward(model: PreTrainedModel, token_ids: NDArray[np.int32]) -> float:
    """What a reward model gives a conversation [tokens]."""
    ids = torch.from_numpy(token_ids.astype(np.int64))[None].to(model.device)
    return float(model(input_ids=ids, use_cache=False).logits[0, 0])


def _hold_out(
    pairs: Sequence[TokenizedPair], *, share: float, seed: int
) -> tuple[list[TokenizedPair], list[TokenizedPair]]:
    """Pairs to train on and pairs to be judged by, which share no scenario."""
    scenarios = sorted({pair.scenario_id for pair in pairs})
    count = round(share * len(scenarios))
    if not 0 < count < len(scenarios):
        raise DataError(
            f"a held-out share of {share:g} of {len(scenarios)} scenarios leaves {len(scenarios) - count} to train on "
            f"and {count} to be judged by; both must be at least 1: add preferences of other scenarios"
        )
    order = np.random.default_rng(seed).permutation(len(scenarios))
    apart = {scenarios[index] for index in order[:count]}
    trained = [pair for pair in pairs if pair.scenario_id not in apart]
    return trained, [pair for pair in pairs if pair.scenario_id in apart]


def _chosen(pair: TokenizedPair) -> NDArray[np.int32]:
    return np.concatenate([pair.prompt_ids, pair.chosen_ids])


def _rejected(pair: TokenizedPair) -> NDArray[np.int32]:
    return np.concatenate([pair.prompt_ids, pair.rejected_ids])


class _SilentRewardTrainer(WithoutTelemetry, RewardTrainer):
    """A RewardTrainer that reports to nobody."""
