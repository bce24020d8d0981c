"""What several tests build the same way."""

from __future__ import annotations

import numpy as np

from grpo.trajectories import Trajectory


def make_trajectory(**changes: object) -> Trajectory:
    """A trajectory of one token that the policy said, of scenario s and policy p, with these fields changed."""
    fields: dict[str, object] = {
        "scenario_id": "s",
        "scenario_hash": "h",
        "category": "c",
        "difficulty": "easy",
        "sample": 0,
        "seed": 0,
        "policy_hash": "p",
        "renderer_hash": "r",
        "temperature": 1.0,
        "turns": (),
        "token_ids": np.zeros(1, dtype=np.int32),
        "loss_mask": np.ones(1, dtype=np.bool_),
        "sampler_logprobs": np.zeros(1, dtype=np.float32),
        "stop": "terminated",
        **changes,
    }
    return Trajectory(**fields)  # type: ignore[arg-type]
