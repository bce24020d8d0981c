"""HTML rendering of the report: one self-contained page without scripts, fonts or external images.

Texts of users, tools and the policy are untrusted. Therefore the template escapes all of them, and the page's policy
forbids the browser to load anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from grpo.evaluation import plots
from grpo.evaluation.schema import EpisodePair, Evaluation, Interval, IterationMetrics, ReportDocument

VERDICTS = {"promote": "Promoted", "refuse": "Refused", "failed": "Failed"}
_MINUTE_S, _HOUR_S = 60, 3600
_WHOLE_FROM = 100  # numbers with three digits before the point are shown without decimals


@cache
def templates(*folders: Path) -> Environment:
    """Jinja environment of the report and of templates in `folders`: shared style and filters, texts escaped."""
    environment = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        percent=percent, number=number, count=count, duration=duration, call=call, relative=relative
    )
    return environment


def render_page(document: ReportDocument) -> str:
    """Render the page. The same document gives the same page."""
    evaluation = document.evaluation
    return (
        templates()
        .get_template("page.html.j2")
        .render(
            document=document,
            verdict=VERDICTS[document.decision.verdict],
            summary=_summary(evaluation),
            measure=_measure(evaluation),
            change=_change(evaluation),
            percent=percent,
            number=number,
            points=_points,
            heldout=None if evaluation is None else plots.heldout(evaluation),
            curves=_curves(document.iterations),
            continuous=_continuous(document.iterations),
            is_taught=_is_taught(document.iterations),
            components=sorted({name for iteration in document.iterations for name in iteration.components}),
            bar_scale=_bar_scale,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """One figure of the learning curves. `svg` is None if the curve has no values."""

    title: str
    meaning: str
    first: str
    last: str
    svg: str | None


def _curves(iterations: Sequence[IterationMetrics]) -> list[_Curve]:
    """Learning curves of a run. Empty if the run has no iterations."""
    if not iterations:
        return []

    def curve(
        title: str,
        meaning: str,
        read: Callable[[IterationMetrics], float | None],
        show: Callable[[float | None], str],
        draw: Callable[[Sequence[IterationMetrics]], str],
    ) -> _Curve:
        values = [read(iteration) for iteration in iterations]
        svg = None if all(value is None for value in values) else draw(iterations)
        return _Curve(title=title, meaning=meaning, first=show(values[0]), last=show(values[-1]), svg=svg)

    return [
        curve("Reward", "Mean over rollouts, and its components", lambda i: i.reward, number, plots.reward),
        curve("Rollout success", "Share of verified successes", lambda i: i.success, percent, plots.success),
        curve("KL to the base", "Nats per token", lambda i: i.kl_to_base, number, plots.kl_to_base),
        *(
            [curve("KL to the teacher", "Nats per token", lambda i: i.teacher_kl, number, plots.teacher_kl)]
            if _is_taught(iterations)
            else []
        ),
        curve("Entropy", "Nats per token", lambda i: i.entropy, number, plots.entropy),
        curve(
            "Informative groups",
            "Share of groups with different rewards",
            lambda i: i.informative_share,
            percent,
            plots.informative_share,
        ),
        curve(
            "Truncated and failed",
            "Share of episodes",
            lambda i: i.truncated_share + i.failed_share,
            percent,
            plots.lost_share,
        ),
    ]


def _is_taught(iterations: Sequence[IterationMetrics]) -> bool:
    """True if a teacher read tokens of some iteration."""
    return any(iteration.teacher_kl is not None for iteration in iterations)


def _continuous(iterations: Sequence[IterationMetrics]) -> str | None:
    """Staleness, drops and overlap of a continuous rollout in one sentence, or None if the rollout was in stages."""
    stale = [(i.staleness_mean, i.staleness_max or 0) for i in iterations if i.staleness_mean is not None]
    if not stale:
        return None
    busy = [iteration.busy_share for iteration in iterations if iteration.busy_share is not None]
    overlap = f" Rollout and update were busy at once in {percent(fmean(busy))} of the time." if busy else ""
    dropped = sum(iteration.dropped_episodes or 0 for iteration in iterations)
    return (
        f"The oldest token of an episode was {number(fmean(mean for mean, _ in stale))} updates old on average, and "
        f"{max(most for _, most in stale)} at most. {count(dropped)} episodes were dropped as too stale.{overlap}"
    )


def _summary(evaluation: Evaluation | None) -> str:
    """Summary of the result in one sentence."""
    if evaluation is None:
        return "No candidate was evaluated."
    measure, change = _measure(evaluation), _change(evaluation)

    def between(interval: Interval, show: Callable[[float | None], str]) -> str:
        return f"{show(interval.mean)} [{show(interval.low)}, {show(interval.high)}]"

    overall = evaluation.overall
    return (
        f"On {count(overall.difference.count)} held-out scenarios, {evaluation.metric} went from "
        f"{between(overall.champion, measure)} to {between(overall.candidate, measure)}: a paired difference of "
        f"{between(overall.difference, change)}, intervals at {evaluation.confidence:.0%} confidence."
    )


def _measure(evaluation: Evaluation | None) -> Callable[[float | None], str]:
    """Format of the compared metric: percent for success, a number for a reward."""
    return percent if evaluation is not None and evaluation.metric == "success" else number


def _change(evaluation: Evaluation | None) -> Callable[[float | None], str]:
    """Format of a difference: signed, and in percentage points for success."""
    return _points if evaluation is not None and evaluation.metric == "success" else _signed


def _points(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return number(value)
    return _minus(f"{_tenths(100 * value):+.1f} pp")


def _signed(value: float | None) -> str:
    return number(value) if value is None or value <= 0 else f"+{number(value)}"


def percent(value: float | None) -> str:
    """Format 0.4167 as 41.7%. A missing value is a dash."""
    if value is None or not math.isfinite(value):
        return number(value)
    return _minus(f"{_tenths(100 * value):.1f}%")


def number(value: float | None) -> str:
    """Format with three significant digits: 0.4167 → 0.417, 12345 → 12,345, 0.00001 → 1.00e-05, and None → a dash."""
    if value is None:
        return "–"
    if value == 0 or not math.isfinite(value):
        return _minus(f"{value:g}") if value else "0"
    return _minus(f"{value:,.0f}" if abs(value) >= _WHOLE_FROM else f"{value:#.3g}".rstrip("."))


def count(value: int) -> str:
    """Format 12345 as 12,345."""
    return f"{value:,d}"


def duration(seconds: float) -> str:
    """Format a duration: 0.0234 → 23 ms, 12.34 → 12.3 s, 187 → 3 min 07 s, 5400 → 1 h 30 min."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < _MINUTE_S - 0.05:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR_S:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def call(text: str) -> str:
    """Format a tool call, `{"name": "refund", "arguments": {"amount": 9}}` → `refund(amount=9)`, or keep the text."""
    try:
        record = json.loads(text)
        arguments = ", ".join(
            f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in record["arguments"].items()
        )
        return f"{record['name']}({arguments})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return text


def relative(path: str) -> str:
    """Relative link to a file. It is quoted and begins with `./`, so that no path can leave the file system."""
    return "./" + quote(path)


def _bar_scale(pair: EpisodePair) -> float:
    """Value of a full bar in both breakdowns of a pair: 1, or the largest component above it."""
    episodes = (pair.champion, pair.candidate)
    values = (abs(value) for episode in episodes for value in episode.breakdown.values())
    return max([1.0, *(value for value in values if math.isfinite(value))])


def _tenths(value: float) -> float:
    """Round to one decimal, without negative zero."""
    return round(value, 1) + 0.0


def _minus(shown: str) -> str:
    """Replace a leading hyphen by a minus sign."""
    return shown.replace("-", "−", 1) if shown.startswith("-") else shown
