"""Supervised fine-tuning (SFT): next-token training on demonstrations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from grpo.learner.offline.demonstrations import TokenizedDemonstration, next_token_loss


def cosine_schedule(step: int, *, steps: int, warmup: int) -> float:
    """Learning-rate factor: linear warm-up to 1, then half a cosine to 0.1."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def train_sft(
    model: PreTrainedModel,
    batches: Iterator[Sequence[TokenizedDemonstration]],
    *,
    steps: int,
    learning_rate: float,
    warmup: int = 50,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> float:
    """Minimize the next-token loss; returns the last loss, in nats per token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    value = math.nan
    for step in range(steps):
        for parameters in optimizer.param_groups:
            parameters["lr"] = learning_rate * cosine_schedule(step, steps=steps, warmup=warmup)
        batch = next(batches)
        loss = next_token_loss(model, batch) / sum(int(demonstration.loss_mask.sum()) for demonstration in batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = float(loss.detach())
        on_step(step, value)
    model.eval()
    return value
