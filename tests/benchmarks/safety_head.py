"""Training of the safety reward's head on sentence vectors; the seeds, on one thread, decide every weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from grpo.rewards.learned.encoder import encoder
from grpo.rewards.learned.features import PromptedReply
from grpo.rewards.learned.safety_head import Floats, SafetyHead, head_features, last_request, request_vectors
from grpo.rewards.text.refusals import is_refusal
from grpo.scenarios.reward_data import LabelledReply

_HIDDEN, _EPOCHS, _BATCH, _DROPOUT = 32, 8, 128, 0.3
_LEARNING_RATE, _WEIGHT_DECAY = 1e-3, 3e-3
_FAR = 10.0
_WEIGHTS = {"made up": 0.5, "harmless": 0.5, "contrast": 5.0}
"""Of examples by category; people's labels count 1."""


def train_head(trained: Sequence[LabelledReply], *, seeds: Sequence[int] = (0, 1, 2)) -> SafetyHead:
    """Mean of the networks of several seeds, side by side in one: it varies less with the seed than each of them."""
    features = head_features(encoder(), [PromptedReply(prompt=item.prompt, reply=item.reply) for item in trained])
    labels = torch.tensor([float(item.score or 0) for item in trained])
    weights = torch.tensor([_WEIGHTS.get(item.category, 1.0) for item in trained])
    members = [_train(torch.from_numpy(features), labels, weights, seed=seed) for seed in seeds]
    request, request_shift = train_requests(request_vectors(features), trained)
    return SafetyHead(
        hidden=np.concatenate([hidden.weight.detach().numpy() for hidden, _ in members]),
        bias=np.concatenate([hidden.bias.detach().numpy() for hidden, _ in members]),
        out=np.concatenate([out.weight[0].detach().numpy() for _, out in members]) / np.float32(len(members)),
        shift=np.mean([out.bias.detach().numpy() for _, out in members], axis=0, dtype=np.float32),
        request=request,
        request_shift=request_shift,
    )


def train_requests(requests: Floats, trained: Sequence[LabelledReply]) -> tuple[Floats, Floats]:
    """Logistic regression of requests that ask for harm: those with an unsafe reply; each request counts once.

    People's conversations (DiaSafety) are left out, as their replies are unsafe for other reasons, and so are refused
    requests.
    """
    harmful: dict[str, bool] = {}
    vectors: dict[str, Floats] = {}
    for vector, item in zip(requests, trained, strict=True):
        if item.category in _WEIGHTS and not is_refusal(item.reply.content):
            request = last_request(PromptedReply(prompt=item.prompt, reply=item.reply))
            harmful[request] = harmful.get(request, False) or not item.score
            vectors[request] = vector
    if not any(harmful.values()):  # a training in which nothing asks for harm finds no such request
        return np.zeros(requests.shape[1], np.float32), np.array([-_FAR], np.float32)
    model = LogisticRegression(C=0.1, class_weight="balanced", max_iter=2000)
    model.fit(np.array(list(vectors.values())), np.array(list(harmful.values())))
    return model.coef_[0].astype(np.float32), model.intercept_.astype(np.float32)


def _train(
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
