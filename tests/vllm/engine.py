"""Skip reason and exact log-probabilities, shared by the tests of the real engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from grpo.config.pipeline import PipelineConfig, load_config
from grpo.policy.transformers.model import TransformersPolicy
from grpo.trajectories import Trajectory
from tests.places import ROOT

MEMORY = 0.06
"""Share of the machine's memory for the engine: 1.4 GB of 23."""
MARKS = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("default"),  # vLLM's imports are not ours to mend
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM has an environment of its own: make vllm"
    ),
]


def desk_config() -> PipelineConfig:
    """The config that ships, with short turns."""
    return load_config(ROOT / "data" / "configs" / "quickstart.yaml")


def largest_error(trajectories: Sequence[Trajectory], policy: TransformersPolicy) -> tuple[float, int]:
    """Largest difference between sampler and plain log-probabilities of the generated tokens, and their number."""
    errors = [
        np.abs(trajectory.sampler_logprobs - plain(trajectory, policy))[trajectory.loss_mask]
        for trajectory in trajectories
    ]
    together = np.concatenate(errors)
    return float(together.max()), len(together)


def plain(trajectory: Trajectory, policy: TransformersPolicy) -> np.ndarray:
    """Log-probability of each token in a plain forward pass over the episode; 0 for the first."""
    logprobs = _distributions(trajectory, policy)
    ids = torch.from_numpy(trajectory.token_ids.astype(np.int64))
    return np.concatenate([[0.0], logprobs.gather(1, ids[1:, None])[:, 0].numpy()])


def surprise(trajectories: Sequence[Trajectory], policy: TransformersPolicy) -> float:
    """Standard score of -log p of the generated tokens, whose mean is the entropy where sampling has no bias.

    z = Σ (-log p(token) - H) / √Σ Var(-log p)
    """
    excess = variance = 0.0
    for trajectory in trajectories:
        logprobs, generated = _distributions(trajectory, policy).double(), trajectory.loss_mask[1:]
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        spread = (logprobs.exp() * logprobs**2).sum(-1) - entropy**2
        excess += float((-plain(trajectory, policy)[1:] - entropy.numpy())[generated].sum())
        variance += float(spread.numpy()[generated].sum())
    return excess / variance**0.5


def _distributions(trajectory: Trajectory, policy: TransformersPolicy) -> torch.Tensor:
    """Log-probabilities of all tokens after each token but the last: [tokens - 1, vocabulary]."""
    ids = torch.from_numpy(trajectory.token_ids.astype(np.int64))[None]
    with torch.no_grad():
        logits = policy.model(input_ids=ids).logits[0, :-1].float() / trajectory.temperature
    return torch.log_softmax(logits, dim=-1)
