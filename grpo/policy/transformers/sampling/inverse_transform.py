"""Sampling of tokens from probabilities by inverse transform."""

from __future__ import annotations

import torch
from torch.nn import functional

_BLOCK = 256
"""Tokens per block: probabilities are summed by block first."""
NO_TOKEN = -1
"""Sampled from a row that is not finite."""


def inverse_transform(probabilities: torch.Tensor, rows: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Tokens chosen by inverse transform: a uniform number in [0, 1) falls into the interval of one token.

    probabilities .1 .2 .3 .4    cumulative .1 .3 .6 1    uniform .35 → token 2

    Cumulative sums are in float64. They are computed over the sums of blocks, and then only within the block of the
    token, because cumulative sums over the whole row would take ten times as long. A token of probability 0 is never
    chosen. If a row has a NaN, the result is `NO_TOKEN`.
    """
    padding = -probabilities.shape[1] % _BLOCK
    blocks = functional.pad(probabilities, (0, padding)) if padding else probabilities
    blocks = blocks.view(len(probabilities), -1, _BLOCK)
    ends = blocks.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)[rows]
    targets = torch.minimum(uniforms[:, None] * ends[:, -1:], _below(ends[:, -1:]))
    block = torch.searchsorted(ends, targets, right=True).clamp_(max=ends.shape[1] - 1)  # a NaN is above all of them
    targets = targets - functional.pad(ends, (1, 0)).gather(1, block)
    cumulative = blocks[rows, block[:, 0]].double().cumsum(dim=-1)
    targets = torch.minimum(targets, _below(cumulative[:, -1:]))
    token = block * _BLOCK + torch.searchsorted(cumulative, targets, right=True)
    return torch.where(ends[:, -1:] > 0, token, NO_TOKEN)[:, 0]


def _below(values: torch.Tensor) -> torch.Tensor:
    """The next smaller number."""
    return torch.nextafter(values, torch.zeros_like(values))
