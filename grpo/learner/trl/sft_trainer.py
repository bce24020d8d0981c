"""Supervised fine-tuning on tokenized demonstrations by TRL's SFTTrainer, in the model's own forward path.

input_ids   P A1 E A2        (P prompt, A turn of the agent, E reply of the environment)
labels      . x  . x         the loss is on these tokens only
"""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from grpo.errors import NoLearningSignal
from grpo.learner.offline.demonstrations import TokenizedDemonstration, next_token_loss
from grpo.learner.trl.loop import WithoutTelemetry, restored_after, rows_per_pass, run_trainer, training_arguments
from grpo.policy.transformers.forward.packing import common_prefix_length
from grpo.policy.transformers.forward.passes import forward_path, takes_equal_lengths

_IGNORED = -100
"""Label that transformers uses for a token without loss."""


def train_sft(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    demonstrations: Sequence[TokenizedDemonstration],
    *,
    learning_rate: float,
    epochs: int = 1,
    conversations_per_step: int = 16,
    max_tokens: int = 16384,
    max_grad_norm: float = 1.0,
    seed: int = 0,
) -> list[float]:
    """Minimize the mean next-token loss over the agent's tokens; returns the loss of each step, in nats per token.

    AdamW runs without weight decay, and its rate falls linearly to 0. A step takes `conversations_per_step`
    demonstrations in passes of up to `max_tokens` tokens. Padding counts, and a shared prefix counts once. Raises
    `NoLearningSignal` if there are no demonstrations.
    """
    if not demonstrations:
        raise NoLearningSignal("no learning signal: the list of demonstrations is empty")
    per_step = min(conversations_per_step, len(demonstrations))
    per_pass = _rows_per_pass(model, demonstrations, per_step=per_step, max_tokens=max_tokens)
    with restored_after(model), TemporaryDirectory() as folder:
        trainer = _SFTTrainer(
            model=model,
            args=SFTConfig(
                **training_arguments(folder, model.device, seed=seed),
                num_train_epochs=epochs,
                learning_rate=learning_rate,
                lr_scheduler_type="linear",
                per_device_train_batch_size=per_pass,
                gradient_accumulation_steps=per_step // per_pass,
                max_length=None,
                max_grad_norm=max_grad_norm,
                weight_decay=0.0,
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
            train_dataset=Dataset.from_list([_columns(demonstration) for demonstration in demonstrations]),
            data_collator=_collate,
            processing_class=tokenizer,
        )
        logged = run_trainer(trainer, stage="sft")
    return [entry["loss"] for entry in logged]


def _rows_per_pass(
    model: PreTrainedModel, demonstrations: Sequence[TokenizedDemonstration], *, per_step: int, max_tokens: int
) -> int:
    """Number of demonstrations that fit into a pass. If the forward path shares a common prefix, it counts once."""
    if takes_equal_lengths(model):
        return 1
    sequences = [demonstration.token_ids for demonstration in demonstrations]
    shared = common_prefix_length(sequences) if forward_path(model) == "flat" else 0
    width = max(map(len, sequences)) - shared
    return rows_per_pass(per_step, width=width, max_tokens=max_tokens - shared)


def _columns(demonstration: TokenizedDemonstration) -> dict[str, list[int]]:
    labels = np.where(demonstration.loss_mask, demonstration.token_ids, _IGNORED)
    return {"input_ids": demonstration.token_ids.tolist(), "labels": labels.tolist()}


def _collate(rows: Sequence[dict[str, list[int]]]) -> dict[str, Any]:
    """Demonstrations of a pass, and their labels, because the trainer counts labels over the passes of a step."""
    labels = [np.array(row["labels"]) for row in rows]
    demonstrations = [
        TokenizedDemonstration(token_ids=np.array(row["input_ids"], np.int32), loss_mask=own != _IGNORED)
        for row, own in zip(rows, labels, strict=True)
    ]
    return {"demonstrations": demonstrations, "labels": torch.from_numpy(np.concatenate(labels))}


class _SFTTrainer(WithoutTelemetry, SFTTrainer):
    """An SFTTrainer without telemetry. Its passes read a system prompt that demonstrations share only once."""

    def compute_loss(
        self,
        model: PreTrainedModel,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Part of the mean loss of a step, over the `num_items_in_batch` labels of all its passes."""
        assert num_items_in_batch is not None
        return next_token_loss(model, inputs["demonstrations"]) / num_items_in_batch
