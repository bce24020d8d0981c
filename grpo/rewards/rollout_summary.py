"""What a scored rollout shows at a glance."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from grpo.rewards.components import ComponentMoments, component_moments
from grpo.trajectories import Trajectory, group


class RolloutSummary(BaseModel):
    """Means over the episodes of a rollout."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: int
    """Scenarios that were played."""
    informative_groups: int
    """Groups in which two siblings differ in reward: only they teach, where siblings are compared."""
    episodes: int
    rewarded: int
    """Episodes that have a reward."""
    verified: int
    """Episodes whose outcome the environment verified."""
    unjudged: int = 0
    """Episodes whose success has a part that was not judged; they are not among the verified ones."""
    reward: float | None
    """None when no episode has a reward."""
    success: float | None
    """None where the environment verifies nothing."""
    components: dict[str, float]
    truncated_share: float
    failed_share: float
    moments: ComponentMoments = ComponentMoments(names=(), count=0, sums=(), products=())
    """Spread and correlations of the components."""

    def joined(self, other: RolloutSummary) -> RolloutSummary:
        """The summary of this rollout and of one of other scenarios, as if they had been one."""
        rewarded, verified = (self.rewarded, other.rewarded), (self.verified, other.verified)
        episodes = (self.episodes, other.episodes)
        names = dict.fromkeys([*self.components, *other.components])
        return RolloutSummary(
            groups=self.groups + other.groups,
            informative_groups=self.informative_groups + other.informative_groups,
            episodes=sum(episodes),
            rewarded=sum(rewarded),
            verified=sum(verified),
            unjudged=self.unjudged + other.unjudged,
            reward=_mean((self.reward, other.reward), rewarded),
            success=_mean((self.success, other.success), verified),
            components={
                name: mean
                for name in names
                if (mean := _mean((self.components.get(name), other.components.get(name)), rewarded)) is not None
            },
            moments=self.moments.joined(other.moments),
            truncated_share=_mean((self.truncated_share, other.truncated_share), episodes) or 0.0,
            failed_share=_mean((self.failed_share, other.failed_share), episodes) or 0.0,
        )


def summarize(trajectories: Sequence[Trajectory]) -> RolloutSummary:
    """Average a scored rollout; failed episodes are counted, and left out of every mean."""
    count = max(1, len(trajectories))
    groups = group(trajectories)
    rewards = [reward for t in trajectories if (reward := t.total_reward) is not None]
    verified = [t.success for t in trajectories if t.success is not None]
    parts: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.breakdown.items():
            parts.setdefault(name, []).append(value)
    return RolloutSummary(
        groups=len(groups),
        informative_groups=sum(len({*siblings.rewards} - {None}) > 1 for siblings in groups),
        episodes=len(trajectories),
        rewarded=len(rewards),
        verified=len(verified),
        unjudged=sum(t.outcome is not None and t.success is None for t in trajectories),
        reward=sum(rewards) / len(rewards) if rewards else None,
        success=sum(verified) / len(verified) if verified else None,
        components={name: sum(values) / len(values) for name, values in parts.items()},
        moments=component_moments(trajectories),
        truncated_share=sum(t.stop == "truncated" for t in trajectories) / count,
        failed_share=sum(t.stop == "failed" for t in trajectories) / count,
    )


def _mean(means: Sequence[float | None], counts: Sequence[int]) -> float | None:
    """Mean of means over so many each; None when there is none."""
    known = [(mean, count) for mean, count in zip(means, counts, strict=True) if mean is not None and count]
    return sum(mean * count for mean, count in known) / sum(count for _, count in known) if known else None
