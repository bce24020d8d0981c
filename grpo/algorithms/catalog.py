"""The algorithms by name."""

from __future__ import annotations

from dataclasses import replace

from grpo.algorithms.a2c import A2C
from grpo.algorithms.advantages import Baseline
from grpo.algorithms.algorithm import Algorithm
from grpo.algorithms.cispo import CISPO
from grpo.algorithms.dapo import DAPO
from grpo.algorithms.dpo import DPO
from grpo.algorithms.dr_grpo import DR_GRPO
from grpo.algorithms.grpo import GRPO
from grpo.algorithms.gspo import GSPO
from grpo.algorithms.ppo import PPO
from grpo.algorithms.reinforce import REINFORCE
from grpo.algorithms.rloo import RLOO
from grpo.algorithms.trpo import TRPO

ALGORITHMS = {
    algorithm.name: algorithm for algorithm in (GRPO, DR_GRPO, DAPO, GSPO, CISPO, RLOO, REINFORCE, PPO, A2C, TRPO, DPO)
}


def get_algorithm(
    name: str,
    *,
    baseline: Baseline | None = None,
    scale_by_std: bool | None = None,
    clip_low: float | None = None,
    clip_high: float | None = None,
) -> Algorithm:
    """An algorithm by name; what is not None replaces its own choice."""
    own = ALGORITHMS[name]
    return replace(
        own,
        baseline=own.baseline if baseline is None else baseline,
        scale_by_std=own.scale_by_std if scale_by_std is None else scale_by_std,
        clip_low=own.clip_low if clip_low is None else clip_low,
        clip_high=own.clip_high if clip_high is None else clip_high,
    )
