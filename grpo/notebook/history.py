"""History of a training: a table of its metrics, curves of reward and success, and their HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from grpo.config.gates import Metric
from grpo.config.pipeline import EvaluationSettings
from grpo.errors import DataError
from grpo.evaluation.evaluate import mean
from grpo.evaluation.plots import CANDIDATE, CHAMPION, NotebookFigure, draw_note, figure, svg
from grpo.evaluation.schema import Interval
from grpo.notebook.callbacks import flat_metrics
from grpo.notebook.diagnostics import IterationRecord
from grpo.trajectories import Trajectory

_CURVE_INCHES = (4.2, 2.2)
_SETTINGS = EvaluationSettings()

Evaluations = Mapping[int, Mapping[str, float]]
"""Metrics on the held-out scenarios after an iteration."""


def rollout_interval(trajectories: Sequence[Trajectory], metric: Metric, *, seed: int) -> Interval | None:
    """95 % interval over the scenarios of a scored rollout, as in an evaluation, or None if no episode has the metric.

    Failed episodes are left out, as in the means of a rollout.
    """
    try:
        return mean([t for t in trajectories if t.stop != "failed"], _SETTINGS, metric=metric, seed=seed)
    except DataError:
        return None


def table(records: Sequence[IterationRecord], evaluations: Evaluations) -> pd.DataFrame:
    """One row per iteration, from 1, and one column per metric. NaN if an iteration does not have the metric."""
    rows = [
        flat_metrics(record) | {f"heldout/{name}": value for name, value in evaluations.get(record.index, {}).items()}
        for record in records
    ]
    index = pd.Index([record.index + 1 for record in records], name="iteration", dtype="int64")
    return pd.DataFrame(rows, index=index)


def plot(records: Sequence[IterationRecord], evaluations: Evaluations, *, title: str) -> NotebookFigure:
    """Curves of reward and verified success with their intervals. Points are evaluations on held-out scenarios."""
    return figure(title, *(_draw(metric, records, evaluations) for metric in _shown(records)))


def curves_html(records: Sequence[IterationRecord], evaluations: Evaluations) -> str:
    """The curves as inline SVG."""
    curves = [
        svg(f"live-{metric}", f"{metric} by iteration", _draw(metric, records, evaluations), _CURVE_INCHES)
        for metric in _shown(records)
    ]
    boxes = "".join(f'<div style="flex: 0 1 26em">{curve}</div>' for curve in curves)
    return f'<div style="display: flex; flex-wrap: wrap; background: white">{boxes}</div>'


def training_html(records: Sequence[IterationRecord], evaluations: Evaluations, *, iterations: int) -> str:
    """Curves and the last iteration of a training."""
    if not records:
        return f"<p>0 of {iterations} iterations</p>"
    last = f"iteration {records[-1].index + 1} of {iterations}: {describe(records[-1])}"
    return f"<p>{last}</p>{curves_html(records, evaluations)}"


def describe(record: IterationRecord) -> str:
    """Reward and success of an iteration, each with its interval: `reward 0.41 [0.30, 0.52], success 25 % [12, 43]`."""
    parts = []
    if (reward := record.reward_interval) is not None:
        parts.append(f"reward {reward.mean:.3g} [{reward.low:.3g}, {reward.high:.3g}]")
    if (success := record.success_interval) is not None:
        parts.append(f"success {success.mean:.1%} [{success.low:.1%}, {success.high:.1%}]")
    return ", ".join(parts) or "no reward"


def _shown(records: Sequence[IterationRecord]) -> tuple[Metric, ...]:
    verified = any(record.success_interval is not None for record in records)
    return ("reward", "success") if verified else ("reward",)


def _draw(metric: Metric, records: Sequence[IterationRecord], evaluations: Evaluations) -> Callable[[Axes], None]:
    def interval(record: IterationRecord) -> Interval | None:
        return record.reward_interval if metric == "reward" else record.success_interval

    def draw(axes: Axes) -> None:
        axes.set_title(f"{metric} by iteration, 95 % interval")
        drawn = [(record.index + 1, known) for record in records if (known := interval(record)) is not None]
        if not drawn:
            draw_note(axes, f"no iteration has a {metric}")
            return
        places = [place for place, _ in drawn]
        axes.fill_between(
            places, [known.low for _, known in drawn], [known.high for _, known in drawn], color=CANDIDATE, alpha=0.15
        )
        axes.plot(places, [known.mean for _, known in drawn], "o-", color=CANDIDATE, label="rollouts")
        heldout = [(index + 1, metrics[metric]) for index, metrics in evaluations.items() if metric in metrics]
        heldout = [(place, value) for place, value in heldout if math.isfinite(value)]
        if heldout:
            axes.plot(*zip(*heldout, strict=True), "D", color=CHAMPION, markersize=4, label="held out")
            axes.legend(loc="lower right")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
        if metric == "success":
            axes.set_ylim(-0.02, 1.02)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))

    return draw
