"""Logits filters: greedy, top-k and nucleus (top-p) sampling (Holtzman et al., arXiv 1904.09751)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from grpo.policy.policy import Sampling


def filter_logits(scores: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Set the logits [turns, vocabulary] of excluded tokens to −∞. If no turn filters, they are returned unchanged.

    probabilities .5 .3 .2    top_k 2 → .5 .3 –    top_p .6 → .5 .3 –    top_p .5 → .5 – –    temperature 0 → .5 – –

    The likeliest token is never excluded. If a row has a NaN or an infinity, the result has one too, so that no token
    is sampled.
    """
    if all(sampling.unfiltered for sampling in samplings):
        return scores
    greedy = [row for row, sampling in enumerate(samplings) if sampling.greedy]
    ranked = [row for row, sampling in enumerate(samplings) if not (sampling.greedy or sampling.unfiltered)]
    filtered = scores.clone()
    if greedy:
        best = scores[greedy].argmax(dim=-1, keepdim=True)
        likeliest = scores[greedy].gather(1, best) * 0.0  # NaN for a NaN and for an infinity
        filtered[greedy] = torch.full_like(scores[greedy], -torch.inf).scatter(1, best, likeliest)
    if ranked:
        filtered[ranked] = _rank_filter(scores[ranked], [samplings[row] for row in ranked])
    return filtered


def _rank_filter(scores: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Apply top-k and top-p to each row."""
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    mass_before = ordered.softmax(dim=-1).cumsum(dim=-1).roll(1, dims=-1)
    mass_before[:, 0] = 0.0
    vocabulary = scores.shape[-1]
    rank = torch.arange(vocabulary, device=scores.device)
    kept = (
        rank < torch.tensor([min(s.top_k or vocabulary, vocabulary) for s in samplings], device=scores.device)[:, None]
    )
    kept &= mass_before < torch.tensor([s.top_p for s in samplings], device=scores.device)[:, None]
    kept[:, 0] = True  # float32 may round top_p to 0
    return scores.masked_fill(~kept.gather(-1, order.argsort(dim=-1)), -torch.inf)


def likeliest(logprobs: torch.Tensor, rows: torch.Tensor, counts: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
    """(token, log-probability) of each turn's `counts` likeliest tokens, likeliest first."""
    if not any(counts):
        return [()] * len(counts)
    values, ids = (part[rows] for part in logprobs.topk(min(max(counts), logprobs.shape[1]), dim=-1))
    turns = zip(ids.tolist(), values.tolist(), counts, strict=True)
    return [tuple(zip(row_ids[:count], row[:count], strict=True)) for row_ids, row, count in turns]
