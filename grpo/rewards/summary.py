"""What a scored rollout shows at a glance."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from grpo.trajectories import Trajectory


class RolloutSummary(BaseModel):
    """Means over the episodes of a rollout."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    episodes: int
    reward: float | None
    """None when no episode has a reward."""
    success: float | None
    """None where the environment verifies nothing."""
    components: dict[str, float]
    truncated_share: float
    failed_share: float


def summarize(trajectories: Sequence[Trajectory]) -> RolloutSummary:
    """Average a scored rollout; failed episodes are counted, and left out of every mean."""
    count = max(1, len(trajectories))
    rewards = [reward for t in trajectories if (reward := t.total_reward) is not None]
    verified = [t.outcome.success for t in trajectories if t.outcome is not None]
    parts: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.breakdown.items():
            parts.setdefault(name, []).append(value)
    return RolloutSummary(
        episodes=len(trajectories),
        reward=sum(rewards) / len(rewards) if rewards else None,
        success=sum(verified) / len(verified) if verified else None,
        components={name: sum(values) / len(values) for name, values in parts.items()},
        truncated_share=sum(t.stop == "truncated" for t in trajectories) / count,
        failed_share=sum(t.stop == "failed" for t in trajectories) / count,
    )
