"""Supervised fine-tuning on tokenized demonstrations by TRL's SFTTrainer.

input_ids   P A1 E A2        (P prompt, A turn of the agent, E reply of the environment)
labels      . x  . x         the loss is on these tokens only
"""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import TemporaryDirectory

import numpy as np
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from grpo.errors import NoLearningSignal
from grpo.learner.demonstrations import TokenizedDemonstration
from grpo.learner.trl.loop import WithoutTelemetry, restored_after, rows_per_pass, run_trainer, training_arguments

_IGNORED = -100
"""Label of a token without loss, in transformers."""


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
    """Minimize the mean next-token loss over the agent's tokens of each step; returns the loss of each, nats a token.

    AdamW without weight decay, its rate falling linearly to 0. A step takes `conversations_per_step` demonstrations in
    passes of at most `max_tokens` tokens, padding included. Raises `NoLearningSignal` without demonstrations.
    """
    if not demonstrations:
        raise NoLearningSignal("no learning signal: the list of demonstrations is empty")
    per_step = min(conversations_per_step, len(demonstrations))
    width = max(len(demonstration.token_ids) for demonstration in demonstrations)
    per_pass = rows_per_pass(per_step, width=width, max_tokens=max_tokens)
    with restored_after(model), TemporaryDirectory() as folder:
        trainer = _TokenizedSFTTrainer(
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
            processing_class=tokenizer,
        )
        logged = run_trainer(trainer)
    return [entry["loss"] for entry in logged]


def _columns(demonstration: TokenizedDemonstration) -> dict[str, list[int]]:
    labels = np.where(demonstration.loss_mask, demonstration.token_ids, _IGNORED)
    return {"input_ids": demonstration.token_ids.tolist(), "labels": labels.tolist()}


class _TokenizedSFTTrainer(WithoutTelemetry, SFTTrainer):
    """An SFTTrainer without usage telemetry."""
