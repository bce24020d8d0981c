"""Batches with one row per token sequence, padded on the right, so that in a causal model no token attends to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch

from grpo.policy.transformers.forward.token_batch import MaskedSequence, TokenBatch

S = TypeVar("S", bound=MaskedSequence)
_PAD = 0


def pad(samples: Sequence[MaskedSequence], *, device: torch.device) -> TokenBatch:
    """Lay out samples in rows that are as long as the longest sample."""
    lengths = np.array([len(sample.token_ids) for sample in samples])
    width = int(lengths.max())
    token_ids = np.full((len(samples), width), _PAD, dtype=np.int64)
    for row, sample in enumerate(samples):
        token_ids[row, : lengths[row]] = sample.token_ids
    completions = [np.flatnonzero(sample.loss_mask) for sample in samples]
    predictors = np.concatenate([row * width + index - 1 for row, index in enumerate(completions)])
    targets = np.concatenate([sample.token_ids[index] for sample, index in zip(samples, completions, strict=True)])
    return TokenBatch(
        token_ids=torch.from_numpy(token_ids).to(device),
        position_ids=torch.arange(width, device=device).expand(len(samples), -1),
        tree=None,
        predictors=torch.from_numpy(predictors).to(device),
        ends=torch.from_numpy(np.arange(len(samples)) * width + lengths - 1).to(device),
        targets=torch.from_numpy(targets.astype(np.int64)).to(device),
    )


def padded_microbatches(samples: Sequence[S], *, max_tokens: int, equal_lengths: bool) -> list[list[S]]:
    """Split a batch into passes of rows of similar or equal lengths, up to `max_tokens` tokens with padding."""
    batches: list[list[S]] = []
    for sample in sorted(samples, key=lambda sample: -len(sample.token_ids)):
        width = len(batches[-1][0].token_ids) if batches else 0
        fits = batches and (len(batches[-1]) + 1) * width <= max_tokens
        if fits and not (equal_lengths and len(sample.token_ids) != width):
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return batches
