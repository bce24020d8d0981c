"""TRL's side of a comparison: the model as transformers loads it, and a step of GRPOTrainer on a batch of ours."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo.learner.batch import Sample
from grpo.learner.trl.loop import WithoutTelemetry, training_arguments
from grpo.policy.tokenizer import load_tokenizer


class Trainer(WithoutTelemetry, GRPOTrainer):
    """TRL's trainer as it is, without calls to the network."""


def plain_model(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model with PyTorch's attention, in float32, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    )
    return model, load_tokenizer(folder)


def make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    rows: int,
    checkpointing: bool,
    half: bool = False,
) -> Trainer:
    """A GRPOTrainer with its defaults that takes `rows` episodes a forward pass; `half` computes in bfloat16."""
    settings = {
        **training_arguments(tempfile.mkdtemp(prefix="trl-"), model.device, seed=0),
        "bf16": half,
        "activation_checkpointing": checkpointing,
        "per_device_train_batch_size": rows,
        "num_generations": rows,
        "learning_rate": 0.0,
        "loss_type": "grpo",
    }
    trainer = Trainer(
        model=model,
        args=GRPOConfig(**settings),
        reward_funcs=_no_reward,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * rows}),
        processing_class=tokenizer,
    )
    trainer.create_optimizer()
    model.train()
    if checkpointing:
        model.activation_checkpointing_enable()
    return trainer


def _no_reward(completions: list[str], **_: Any) -> list[float]:
    return [0.0] * len(completions)


def trl_inputs(samples: Sequence[Sample], *, device: torch.device) -> dict[str, torch.Tensor]:
    """The batch as TRL lays it out: prompts padded left, all that follows padded right."""
    cut = [(sample, int(sample.loss_mask.argmax())) for sample in samples]
    inputs = {
        "prompt_ids": _pad([s.token_ids[:k].astype(np.int64) for s, k in cut], left=True),
        "prompt_mask": _pad([np.ones(k, dtype=np.int64) for _, k in cut], left=True),
        "completion_ids": _pad([s.token_ids[k:].astype(np.int64) for s, k in cut], left=False),
        "completion_mask": _pad([np.ones(len(s.token_ids) - k, dtype=np.int64) for s, k in cut], left=False),
        "tool_mask": _pad([s.loss_mask[k:].astype(np.int64) for s, k in cut], left=False),
        "advantages": torch.tensor([float(s.advantages[k]) for s, k in cut]),
    }
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def _pad(rows: Sequence[NDArray[Any]], *, left: bool) -> torch.Tensor:
    width = max(map(len, rows))
    padded = [np.pad(row, (width - len(row), 0) if left else (0, width - len(row))) for row in rows]
    return torch.from_numpy(np.stack(padded))


def trl_step(trainer: Trainer, inputs: dict[str, torch.Tensor], *, rows: int) -> float:
    """Forward and backward of every `rows` episodes, clip and optimizer step, as its loop does; the gradient's norm."""
    model, count = trainer.model, len(inputs["advantages"])
    trainer.current_gradient_accumulation_steps = count // rows
    trainer.optimizer.zero_grad()
    tokens = (inputs["completion_mask"] * inputs["tool_mask"]).sum()
    for start in range(0, count, rows):
        micro = {name: tensor[start : start + rows] for name, tensor in inputs.items()}
        trainer.accelerator.backward(trainer._compute_loss(model, {**micro, "num_items_in_batch": tokens}))
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), trainer.args.max_grad_norm)
    trainer.optimizer.step()
    return float(norm)
