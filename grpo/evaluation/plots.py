"""Figures of the report: SVG that takes its colours from the page, and one PNG for trackers.

Figures are built without pyplot, so no global figure is left behind. Output is deterministic.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import cycle
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from matplotlib.typing import RcKeyType

from grpo.evaluation.schema import Evaluation, Interval, IterationMetrics, PairedComparison, ReportDocument

INK, MUTED, GRID, CHAMPION, CANDIDATE = "#1c2024", "#667085", "#e3e6ea", "#8b95a7", "#2f66d0"
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--line", CHAMPION: "--champion", CANDIDATE: "--candidate"}
"""CSS variables of the colours, so that dark mode can change them. Outside of a page, the literal colour is used."""

_SERIES = ("#d1862b", "#2f9e77", "#b36fb0", "#3f9cc9", "#c25b56", "#8a8f3c", "#7d7fd0")
_STYLES = ("--", "-.", ":")

_STYLE: dict[RcKeyType, Any] = {
    "svg.fonttype": "none",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.0,
    "text.parse_math": False,  # names of categories come from the data, so that a "$" is a dollar
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.color": GRID,
    "ytick.labelcolor": MUTED,
    "xtick.major.size": 3.0,
    "ytick.major.size": 0.0,
    "lines.linewidth": 1.6,
    "lines.markersize": 2.6,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.2,
    "legend.borderpad": 0.0,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
}
_OVERVIEW_PADDING: dict[RcKeyType, Any] = {
    "figure.constrained_layout.h_pad": 0.12,
    "figure.constrained_layout.w_pad": 0.15,
}
_SIDES: tuple[tuple[Callable[[PairedComparison], Interval], str, str, int], ...] = (
    (lambda comparison: comparison.champion, "champion", CHAMPION, -1),
    (lambda comparison: comparison.candidate, "candidate", CANDIDATE, 1),
)
"""Champion and candidate of a comparison: accessor, label, colour, and direction of the offset."""

_CURVE_INCHES = (3.5, 2.2)
_CURVE_MARGINS = {"left": 0.17, "right": 0.985, "top": 0.93}
_TICKS_INCHES, _LEGEND_ROW_INCHES = 0.26, 0.165
_LEGEND_COLUMNS = 2
_LEGEND_ROWS_INSIDE = 4  # further rows make the figure higher
_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
_MIN_LOSS_AXIS = 0.05  # a run without losses shows a flat line on a 5 % axis, not noise blown up


def heldout(evaluation: Evaluation) -> str:
    """Champion and candidate with their intervals: all held-out scenarios, by category, by difficulty."""
    rows = _rows(evaluation)
    height = 0.75 + 0.32 * (rows[-1][0] + 1)

    def draw(axes: Axes) -> None:
        for read, side, color, direction in _SIDES:
            places = [row + 0.13 * direction for row, _ in rows]
            intervals = [read(comparison) for _, comparison in rows]
            lows, highs = [i.low for i in intervals], [i.high for i in intervals]
            axes.hlines(places, lows, highs, color=color, linewidth=2.0, alpha=0.55)
            axes.plot([i.mean for i in intervals], places, "o", color=color, markersize=5.0, label=side)
        axes.set_yticks([row for row, _ in rows], [comparison.name for _, comparison in rows])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(rows[-1][0] + 0.55, -0.55)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        if evaluation.metric == "success":
            axes.set_xlim(-0.02, 1.02)
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.figure.legend(loc="outside upper left", ncols=2)

    return svg("heldout", f"Held-out {evaluation.metric}, champion and candidate", draw, (9.2, height))


def reward(iterations: Sequence[IterationMetrics]) -> str:
    """Mean reward of the rollouts, and each of its components."""
    lines: dict[str, list[float | None]] = {"reward": [iteration.reward for iteration in iterations]}
    for name in sorted({name for iteration in iterations for name in iteration.components}):
        lines[name] = [iteration.components.get(name) for iteration in iterations]
    return _curve("reward", "Reward and its components by iteration", iterations, lines)


def success(iterations: Sequence[IterationMetrics]) -> str:
    """Share of verified successes in the rollouts. The line has a gap if the environment verified nothing."""
    lines = {"success": [iteration.success for iteration in iterations]}
    return _curve("success", "Rollout success by iteration", iterations, lines, share=True, top=1.0)


def kl_to_base(iterations: Sequence[IterationMetrics]) -> str:
    """KL between the policy and the base policy."""
    lines = {"KL": [iteration.kl_to_base for iteration in iterations]}
    return _curve("kl", "KL to the base policy by iteration", iterations, lines)


def teacher_kl(iterations: Sequence[IterationMetrics]) -> str:
    """KL between the policy and the teacher of a distillation. The line has a gap if no episode had a teacher."""
    lines = {"KL": [iteration.teacher_kl for iteration in iterations]}
    return _curve("teacher", "KL to the teacher by iteration", iterations, lines)


def entropy(iterations: Sequence[IterationMetrics]) -> str:
    """Mean token entropy of the policy."""
    return _curve("entropy", "Entropy by iteration", iterations, {"entropy": [i.entropy for i in iterations]})


def informative_share(iterations: Sequence[IterationMetrics]) -> str:
    """Share of groups with different rewards. The others give no gradient."""
    lines = {"informative": [iteration.informative_share for iteration in iterations]}
    return _curve("informative", "Informative groups by iteration", iterations, lines, share=True, top=1.0)


def lost_share(iterations: Sequence[IterationMetrics]) -> str:
    """Shares of truncated and of failed episodes."""
    lines = {
        "truncated": [iteration.truncated_share for iteration in iterations],
        "failed": [iteration.failed_share for iteration in iterations],
    }
    highest = max([_MIN_LOSS_AXIS, *(value for line in lines.values() for value in line if math.isfinite(value))])
    return _curve("lost", "Truncated and failed episodes by iteration", iterations, lines, share=True, top=highest)


def plot_png(document: ReportDocument) -> bytes:
    """Overview of the run: the training curve, and held-out bars of champion and candidate."""
    title = f"{document.name}: {document.decision.verdict}"
    return png(
        title,
        lambda axes: _draw_training(axes, document.iterations),
        lambda axes: _draw_bars(axes, document.evaluation),
    )


class NotebookFigure(Figure):
    """Figure that a notebook shows as the last value of a cell, without pyplot."""

    def _repr_png_(self) -> bytes:
        return _png(self)


def figure(title: str, *draws: Callable[[Axes], None], width: float = 5.0) -> NotebookFigure:
    """Plots side by side in the common style, on white. `width` is the width of one plot in inches."""
    with matplotlib.rc_context({**_STYLE, **_OVERVIEW_PADDING}):
        drawn = NotebookFigure(figsize=(width * len(draws), 4.0), layout="constrained", facecolor="white")
        for axes, draw in zip(drawn.subplots(1, len(draws), squeeze=False)[0], draws, strict=True):
            draw(axes)
        drawn.suptitle(title, x=0.015, ha="left", fontsize=12)
    return drawn


def png(title: str, *draws: Callable[[Axes], None], width: float = 5.0) -> bytes:
    """PNG of `figure`."""
    return _png(figure(title, *draws, width=width))


def _png(drawn: Figure) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context({**_STYLE, **_OVERVIEW_PADDING}):
        drawn.savefig(buffer, format="png", dpi=140, metadata={"Software": None})
    return buffer.getvalue()


def _draw_training(axes: Axes, iterations: Sequence[IterationMetrics]) -> None:
    verified = any(iteration.success is not None for iteration in iterations)
    axes.set_title("Rollout success by iteration" if verified else "Reward by iteration")
    if not iterations:
        draw_note(axes, "no iteration was trained")
        return
    values = [iteration.success if verified else iteration.reward for iteration in iterations]
    axes.set_xlabel("iteration")
    _draw_lines(axes, iterations, {"": values}, share=verified, top=1.0 if verified else None)


def _draw_bars(axes: Axes, evaluation: Evaluation | None) -> None:
    if evaluation is None:
        axes.set_title("Held-out scenarios")
        draw_note(axes, "no candidate was evaluated")
        return
    axes.set_title(f"Held-out {evaluation.metric} by category")
    comparisons = (evaluation.overall, *evaluation.by_category)
    for read, side, color, direction in _SIDES:
        places = [index + 0.2 * direction for index in range(len(comparisons))]
        intervals = [read(comparison) for comparison in comparisons]
        axes.bar(places, [interval.mean for interval in intervals], width=0.36, color=color, label=side)
        axes.vlines(places, [i.low for i in intervals], [i.high for i in intervals], color=INK, linewidth=1.0)
    axes.set_xticks(range(len(comparisons)), [comparison.name for comparison in comparisons])
    axes.tick_params(axis="x", labelcolor=INK)
    if evaluation.metric == "success":
        axes.set_ylim(0.0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.02), ncols=2)


def draw_note(axes: Axes, text: str) -> None:
    """Write a text in place of a plot."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, color=MUTED, ha="center", va="center", transform=axes.transAxes)


def _rows(evaluation: Evaluation) -> list[tuple[float, PairedComparison]]:
    """Comparisons with their vertical positions. A gap separates overall, categories and difficulties."""
    rows: list[tuple[float, PairedComparison]] = []
    place = 0.0
    for kind in ((evaluation.overall,), evaluation.by_category, evaluation.by_difficulty):
        for comparison in kind:
            rows.append((place, comparison))
            place += 1.0
        place += 0.4
    return rows


def _curve(
    name: str,
    label: str,
    iterations: Sequence[IterationMetrics],
    lines: Mapping[str, Sequence[float | None]],
    *,
    share: bool = False,
    top: float | None = None,
) -> str:
    """SVG of lines over iterations. Several lines get a legend below, and many of them a higher figure.

    Its margins are fixed, because a layout that measures all texts takes as long as the drawing itself.
    """
    legend_rows = math.ceil(len(lines) / _LEGEND_COLUMNS) if len(lines) > 1 else 0
    width, height = _CURVE_INCHES
    height += _LEGEND_ROW_INCHES * max(0, legend_rows - _LEGEND_ROWS_INSIDE)
    bottom = (_TICKS_INCHES + _LEGEND_ROW_INCHES * legend_rows) / height

    def draw(axes: Axes) -> None:
        _draw_lines(axes, iterations, lines, share=share, top=top)
        if legend_rows:
            axes.figure.legend(loc="lower left", ncols=_LEGEND_COLUMNS)

    return svg(name, label, draw, (width, height), margins={**_CURVE_MARGINS, "bottom": bottom})


def _draw_lines(
    axes: Axes,
    iterations: Sequence[IterationMetrics],
    lines: Mapping[str, Sequence[float | None]],
    *,
    share: bool,
    top: float | None,
) -> None:
    """Draw the first line in the candidate's colour, the others dashed and thinner. The axis includes 0."""
    indices = [iteration.index for iteration in iterations]
    colors, styles = cycle(_SERIES), cycle(_STYLES)
    seen = [0.0]
    for position, (name, values) in enumerate(lines.items()):
        drawn = [math.nan if value is None or not math.isfinite(value) else value for value in values]
        seen += [value for value in drawn if not math.isnan(value)]
        if position == 0:
            axes.plot(indices, drawn, "o-", color=CANDIDATE, label=name, zorder=3)
        else:
            axes.plot(indices, drawn, next(styles), color=next(colors), label=name, linewidth=1.2)
            axes.plot(indices, drawn, "o", color=axes.lines[-1].get_color(), markersize=1.4)
    side = max(0.5, 0.03 * (indices[-1] - indices[0]))
    axes.set_xlim(indices[0] - side, indices[-1] + side)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    low, high = min(seen), max(seen) if top is None else top
    room = 0.04 * (high - low) or 0.04
    axes.set_ylim(low - room, high + room)
    if share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if top == 1.0:
        axes.set_yticks(_QUARTERS)


def svg(
    name: str,
    label: str,
    draw: Callable[[Axes], None],
    inches: tuple[float, float],
    *,
    margins: Mapping[str, float] | None = None,
) -> str:
    """Figure in the common style as an inline `<svg>` element without namespaces or external addresses.

    Its width follows the page, its colours the page's variables. `name` salts the ids, which are unique in a page.
    `margins` are the edges of the plot as shares of the figure. If there are none, they are fitted to the texts.
    """
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        drawn = Figure(figsize=inches, layout="constrained" if margins is None else None)
        draw(drawn.add_subplot())
        if margins is not None:
            drawn.subplots_adjust(**margins)
        buffer = io.StringIO()
        drawn.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    drawing = buffer.getvalue()
    opening = re.search(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', drawing)
    if opening is None:
        raise ValueError(f"figure {name} has no <svg> element with a viewBox. Matplotlib writes another form")
    body = drawing[opening.end() :]
    for unwanted in (r"<metadata>.*?</metadata>", r"<style.*?</style>", r"<!--.*?-->"):
        body = re.sub(unwanted, "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = body.replace("xlink:href=", "href=")
    body = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", _page_color, body)
    body = re.sub(r">\s+<", "><", body)
    return f'<svg viewBox="{opening[1]}" role="img" aria-label="{escape(label)}">{body}'.strip()


def _page_color(match: re.Match[str]) -> str:
    variable = _VARIABLES.get(match[2])
    return match[0] if variable is None else f"{match[1]}: var({variable}, {match[2]})"
