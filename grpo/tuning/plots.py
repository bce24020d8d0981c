"""Figures of a study: reward by trial, reward by intermediate evaluation, importance of dimensions."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from grpo.evaluation.plots import CANDIDATE, CHAMPION, INK, MUTED, draw_note, png, svg
from grpo.tuning.study_summary import StudySummary

_INCHES = (9.2, 2.6)
_ROW = 0.34  # inches of a bar


def history(study: StudySummary) -> str:
    """Reward of each trial, and the best so far, as an `<svg>` element."""
    return svg("history", "Held-out reward by trial", lambda axes: _draw_history(axes, study), _INCHES)


def intermediate_evals(study: StudySummary) -> str:
    """Held-out reward of each trial during its training. Pruned trials end early."""
    return svg("evaluations", "Held-out reward by evaluation", lambda axes: _draw_evaluations(axes, study), _INCHES)


def importance(study: StudySummary) -> str:
    """Share of the reward's variation that each dimension explains."""
    height = 0.7 + _ROW * max(1, len(study.importance))
    return svg("importance", "Importance of dimensions", lambda axes: _draw_importance(axes, study), (9.2, height))


def pictures(study: StudySummary) -> dict[str, bytes]:
    """History and importance as PNG files by name, for the trackers."""
    drawn: dict[str, Callable[[Axes, StudySummary], None]] = {
        "history.png": _draw_history,
        "importance.png": _draw_importance,
    }
    titles = {"history.png": "held-out reward by trial", "importance.png": "importance"}

    def picture(name: str) -> bytes:
        return png(f"{study.name}: {titles[name]}", lambda axes: drawn[name](axes, study), width=8.0)

    return {name: picture(name) for name in drawn}


def _draw_history(axes: Axes, study: StudySummary) -> None:
    """Draw complete trials as dots, pruned ones as crosses at their last evaluation. Failed ones have no reward."""
    complete = [(trial.number, trial.reward) for trial in study.trials if trial.reward is not None]
    if not complete:
        draw_note(axes, "no trial is complete")
        return
    pruned = [(trial.number, trial.intermediate_evals[-1]) for trial in study.trials if trial.state == "pruned"]
    pick = max if study.direction == "maximize" else min
    best = [pick(reward for _, reward in complete[: k + 1]) for k in range(len(complete))]
    axes.step([number for number, _ in complete], best, where="post", color=CANDIDATE, label="best so far")
    axes.plot(*zip(*complete, strict=True), "o", color=INK, markersize=3.5, label="complete")
    if pruned:
        axes.plot(
            *zip(*pruned, strict=True), "x", color=CHAMPION, markersize=4.5, label="pruned, at the last evaluation"
        )
    axes.set_xlabel("trial")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3)


def _draw_evaluations(axes: Axes, study: StudySummary) -> None:
    shown = [trial for trial in study.trials if trial.intermediate_evals]
    if not shown:
        draw_note(axes, "no trial was evaluated")
        return
    best_trial = study.best_trial
    for trial in shown:
        best = best_trial is not None and trial.number == best_trial.number
        axes.plot(
            range(1, len(trial.intermediate_evals) + 1),
            trial.intermediate_evals,
            "o-" if trial.state == "complete" else "o:",
            color=CANDIDATE if best else CHAMPION,
            linewidth=1.8 if best else 1.0,
            zorder=3 if best else 2,
        )
    axes.set_xlabel("evaluation")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _draw_importance(axes: Axes, study: StudySummary) -> None:
    if not study.importance:
        draw_note(axes, "too few complete trials, or equal rewards")
        return
    ranked = sorted(study.importance.items(), key=lambda pair: pair[1])
    axes.barh([name for name, _ in ranked], [share for _, share in ranked], color=CANDIDATE, height=0.6)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlim(0.0, 1.0)
    axes.grid(visible=False)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.tick_params(axis="x", labelcolor=MUTED)
