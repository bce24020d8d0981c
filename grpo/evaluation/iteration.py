"""Metrics of an iteration from its rollout and its update."""

from __future__ import annotations

from grpo.evaluation.schema import IterationMetrics
from grpo.learner.metrics import UpdateMetrics
from grpo.rewards.rollout_summary import RolloutSummary
from grpo.rollout.windows import WindowMetrics


def iteration_metrics(
    index: int,
    summary: RolloutSummary,
    update: UpdateMetrics,
    *,
    rounds: int,
    open_levels: tuple[str, ...] = (),
    window: WindowMetrics | None = None,
) -> IterationMetrics:
    """Metrics of iteration `index` with `rounds` of rollout, whose scenarios were drawn from `open_levels`.

    `window` has the metrics of its window if the rollout is continuous.
    """
    correlation = None if summary.turn_rewards is None else summary.turn_rewards.correlation
    return IterationMetrics(
        index=index,
        rounds=rounds,
        open_levels=open_levels,
        reward=summary.reward or 0.0,
        success=summary.success,
        components=summary.components,
        highly_correlated=tuple(
            f"{left} and {right} ({rho:+.2f})" for (left, right), rho in summary.moments.highly_correlated().items()
        ),
        truncated_share=summary.truncated_share,
        turn_limit_share=summary.turn_limit_share,
        failed_share=summary.failed_share,
        calls=summary.calls,
        mutual_information=summary.mutual_information,
        input_agnostic=summary.input_agnostic,
        turn_reward_correlation=None if correlation is None else correlation.value,
        turn_reward_low=None if correlation is None else correlation.low,
        turn_reward_high=None if correlation is None else correlation.high,
        **update.model_dump(),
        **({} if window is None else window.model_dump()),
    )
