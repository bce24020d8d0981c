"""Wide & deep network on hashed features (Cheng et al. 2016, arXiv 1606.07792), its losses, and its files.

score = wide · x + out · tanh(hidden · (embedding · x) + bias) + shift        x: features of a reply
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import embedding_bag, mse_loss, softplus

from grpo.errors import ArtifactError
from grpo.rewards.learned.model_card import CARD, WEIGHTS, ModelCard


class Network(torch.nn.Module):
    """Scores of replies from their features. `seed` draws the weights, and every reply scores 0 before training."""

    def __init__(self, *, buckets: int, embedding_dim: int, hidden_dim: int, seed: int = 0) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        drawn = [random.normal(0, embedding_dim**-0.5, (rows, columns)).astype(np.float32)
                 for rows, columns in ((buckets, embedding_dim), (embedding_dim, hidden_dim))]  # fmt: skip
        self.wide = Parameter(torch.zeros(buckets))
        self.embedding, self.hidden = (Parameter(torch.from_numpy(weight)) for weight in drawn)
        self.bias = Parameter(torch.zeros(hidden_dim))
        self.out = Parameter(torch.zeros(hidden_dim))
        self.shift = Parameter(torch.zeros(1))

    @property
    def buckets(self) -> int:
        """Number of hashed features."""
        return len(self.wide)

    def forward(self, features: csr_matrix) -> Tensor:
        """Scores [replies] of features [replies, buckets]."""
        columns, starts, values = map(torch.from_numpy, (features.indices, features.indptr[:-1], features.data))
        wide, pooled = (
            embedding_bag(columns, weight, starts, mode="sum", per_sample_weights=values)
            for weight in (self.wide[:, None], self.embedding)
        )
        return wide[:, 0] + torch.tanh(pooled @ self.hidden + self.bias) @ self.out + self.shift

    @torch.no_grad()
    def scores(self, features: csr_matrix) -> NDArray[np.float32]:
        """Scores [replies] without gradients."""
        return np.asarray(self(features).numpy())

    @torch.no_grad()
    def probabilities(self, features: csr_matrix) -> NDArray[np.float32]:
        """σ(scores) [replies] without gradients."""
        return np.asarray(self(features).sigmoid().numpy())

    def adamw(self, *, learning_rate: float, weight_decay: float = 0.0) -> torch.optim.AdamW:
        """AdamW (Loshchilov & Hutter 2019) over all weights, without weight decay for `shift`."""
        decayed = [weight for name, weight in self.named_parameters() if name != "shift"]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": [self.shift], "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=learning_rate, weight_decay=weight_decay)


def pair_loss(better: Tensor, worse: Tensor) -> Tensor:
    """−log σ(s_better − s_worse), mean over pairs (Bradley & Terry 1952).

    Scores 1 and 0: −log σ(1) = .3133; gradient −σ(−1), +σ(−1) = −.2689, .2689.
    """
    return softplus(worse - better).mean()


def reward_loss(scores: Tensor, rewards: Sequence[float]) -> Tensor:
    """(σ(score) − reward)², mean over replies. Rewards lie in [0, 1]."""
    return mse_loss(scores.sigmoid(), torch.tensor(rewards))


def gradient_step(optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    """Take one optimizer step, and return the loss before it."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


def write_network(folder: Path, network: Network, card: ModelCard) -> ModelCard:
    """Write weights and model card. Returns the card with the digest of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = save(network.state_dict())
    signed = card.model_copy(update={"weights_sha256": hashlib.sha256(weights).hexdigest()})
    (folder / WEIGHTS).write_bytes(weights)
    signed.write(folder)
    return signed


def read_network(folder: Path) -> tuple[Network, ModelCard]:
    """Read weights and model card. Raises `ArtifactError` if one is missing or damaged, or if they do not match."""
    try:
        card = ModelCard.model_validate_json((folder / CARD).read_bytes())
        stored = (folder / WEIGHTS).read_bytes()
    except FileNotFoundError as error:
        raise ArtifactError(f"no learned reward in {folder}: {Path(error.filename).name} is missing") from error
    except ValidationError as error:
        raise ArtifactError(f"{folder / CARD} is not the card of a learned reward: {error}") from error
    digest = hashlib.sha256(stored).hexdigest()
    if digest != card.weights_sha256:
        raise ArtifactError(
            f"{folder / WEIGHTS} is damaged: its digest is {digest}, the card has {card.weights_sha256}"
        )
    try:
        weights = load(stored)
        (buckets, embedding_dim), (_, hidden_dim) = weights["embedding"].shape, weights["hidden"].shape
        network = Network(buckets=buckets, embedding_dim=embedding_dim, hidden_dim=hidden_dim)
        network.load_state_dict(weights)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ArtifactError(f"{folder / WEIGHTS} does not hold a network: {error}. Train it again") from error
    return network, card
