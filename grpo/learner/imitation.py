"""Next-token training on written conversations: how a base model is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn


def cosine(step: int, *, steps: int, warmup: int) -> float:
    """Learning-rate factor: linear warm-up to 1, then half a cosine to 0.1."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def imitate(
    model: nn.Module,
    batches: Iterator[Sequence[Sequence[int]]],
    *,
    steps: int,
    learning_rate: float,
    pad_id: int,
    warmup: int = 50,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> float:
    """Minimise the next-token loss over whole conversations, matrices in bfloat16; returns the last, in nats.

    Every token counts, the customers' and the tools' as well: copying numbers is learned from all of them.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    value = math.nan
    for step in range(steps):
        for parameters in optimizer.param_groups:
            parameters["lr"] = learning_rate * cosine(step, steps=steps, warmup=warmup)
        ids = _pad(next(batches), pad_id)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        targets = ids[:, 1:].masked_fill(ids[:, 1:] == pad_id, -100)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = float(loss.detach())
        on_step(step, value)
    model.eval()
    return value


def _pad(sequences: Sequence[Sequence[int]], pad_id: int) -> torch.Tensor:
    """Pad on the right: under a causal mask no real token sees the padding."""
    rows = [torch.tensor(sequence) for sequence in sequences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_id)
