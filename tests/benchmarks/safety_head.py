"""Teaching of the safety reward's head on sentence vectors; the seeds, on one thread, decide every weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from grpo.rewards.learned.encoder import encoder
from grpo.rewards.learned.features import PromptedReply
from grpo.rewards.learned.safety_head import SafetyHead, head_features
from grpo.scenarios.reward_data import LabelledReply

_HIDDEN, _EPOCHS, _BATCH, _DROPOUT = 32, 8, 128, 0.3
_LEARNING_RATE, _WEIGHT_DECAY = 1e-3, 3e-3
_WEIGHTS = {"made up": 0.5, "harmless": 0.5, "contrast": 5.0}
"""Of examples by category; people's labels count 1."""


def teach_head(trained: Sequence[LabelledReply], *, seeds: Sequence[int] = (0, 1, 2)) -> SafetyHead:
    """Mean of the networks of several seeds, side by side in one: it depends less on the draw than each of them."""
    read = torch.from_numpy(
        head_features(encoder(), [PromptedReply(prompt=item.prompt, reply=item.reply) for item in trained])
    )
    labels = torch.tensor([float(item.score or 0) for item in trained])
    weights = torch.tensor([_WEIGHTS.get(item.category, 1.0) for item in trained])
    members = [_teach(read, labels, weights, seed=seed) for seed in seeds]
    return SafetyHead(
        hidden=np.concatenate([hidden.weight.detach().numpy() for hidden, _ in members]),
        bias=np.concatenate([hidden.bias.detach().numpy() for hidden, _ in members]),
        out=np.concatenate([out.weight[0].detach().numpy() for _, out in members]) / np.float32(len(members)),
        shift=np.mean([out.bias.detach().numpy() for _, out in members], axis=0, dtype=np.float32),
    )


def _teach(
    read: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, *, seed: int
) -> tuple[torch.nn.Linear, torch.nn.Linear]:
    """Minimize the weighted binary cross-entropy of safe and unsafe replies, with dropout, by AdamW."""
    torch.manual_seed(seed)
    hidden, out = torch.nn.Linear(read.shape[1], _HIDDEN), torch.nn.Linear(_HIDDEN, 1)
    drop = torch.nn.Dropout(_DROPOUT)
    net = torch.nn.Sequential(drop, hidden, torch.nn.ReLU(), drop, out)
    optimizer = torch.optim.AdamW(net.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    for _ in range(_EPOCHS):
        for rows in torch.randperm(len(labels)).split(_BATCH):
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                net(read[rows]).squeeze(1), labels[rows], reduction="none"
            )
            optimizer.zero_grad()
            ((losses * weights[rows]).sum() / weights[rows].sum()).backward()
            optimizer.step()
    return hidden, out
