"""Logits filters: greedy, top-k and nucleus (top-p) sampling (Holtzman et al., arXiv 1904.09751)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from grpo.policy.policy import Sampling


def filter_logits(scores: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Set the logits of excluded tokens to −∞, [turns, vocabulary]; unchanged if no turn filters.

    probabilities .5 .3 .2    top_k 2 → .5 .3 –    top_p .6 → .5 .3 –    top_p .5 → .5 – –    temperature 0 → .5 – –
    """
    if all(sampling.unfiltered for sampling in samplings):
        return scores
    ranked, order = scores.sort(dim=-1, descending=True, stable=True)
    mass_before = ranked.softmax(dim=-1).cumsum(dim=-1).roll(1, dims=-1)
    mass_before[:, 0] = 0.0
    rank = torch.arange(scores.shape[-1], device=scores.device)
    top_k = [1 if s.temperature == 0 else s.top_k or scores.shape[-1] for s in samplings]
    kept = rank < torch.tensor(top_k, device=scores.device)[:, None]
    kept &= mass_before < torch.tensor([s.top_p for s in samplings], device=scores.device)[:, None]
    return scores.masked_fill(~kept.gather(-1, order.argsort(dim=-1)), -torch.inf)
