"""Drawing from fewer tokens than there are: greedy, top-k and nucleus sampling (Holtzman et al., arXiv 1904.09751)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from grpo.policy.policy import Sampling


def narrow(scores: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Scores of each turn, [turns, vocabulary], with −∞ for what it does not draw from; as they are where all draw
    from everything.

    probabilities .5 .3 .2    top_k 2 → .5 .3 –    top_p .6 → .5 .3 –    top_p .5 → .5 – –    temperature 0 → .5 – –
    """
    if all(sampling.unfiltered for sampling in samplings):
        return scores
    ranked, order = scores.sort(dim=-1, descending=True, stable=True)
    before = ranked.softmax(dim=-1).cumsum(dim=-1).roll(1, dims=-1)
    before[:, 0] = 0.0
    rank = torch.arange(scores.shape[-1], device=scores.device)
    most = [1 if s.temperature == 0 else s.top_k or scores.shape[-1] for s in samplings]
    kept = rank < torch.tensor(most, device=scores.device)[:, None]
    kept &= before < torch.tensor([s.top_p for s in samplings], device=scores.device)[:, None]
    return scores.masked_fill(~kept.gather(-1, order.argsort(dim=-1)), -torch.inf)
