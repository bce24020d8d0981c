"""Statistics of served turns, and rows of measures with their bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.page import Table
from tests.benchmarks.serve_load import Turn

HEAD = ("measure", "value", "bar", "verdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Measure with the number that it must reach."""

    measure: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    unit: str = ""

    @property
    def met(self) -> bool:
        """True where the value is within its bounds."""
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    def row(self) -> tuple[str, ...]:
        """Cells of the table."""
        unit = f" {self.unit}" if self.unit else ""
        bounds = [("at most", self.at_most), ("at least", self.at_least)]
        bar = ", ".join(f"{name} {bound:,.4g}{unit}" for name, bound in bounds if bound is not None)
        return self.measure, f"{self.value:,.3g}{unit}", bar, "met" if self.met else "**missed**"


def worst(values: Iterable[float]) -> float:
    """Largest value; NaN, which meets no bar, where one of them was not measured."""
    return float(np.max(list(values)))


def table(bars: Iterable[Bar]) -> Table:
    """Table of bars."""
    return Table(head=HEAD, rows=tuple(bar.row() for bar in bars))


def tokens_per_second(turns: Sequence[Turn], begins: float, ends: float) -> float:
    """Tokens that arrived in a window; an event has its share of the turn's tokens.

    An event of a turn that was cut has the mean of the others: servers may send several tokens in one event.
    """
    whole = [turn for turn in turns if turn.tokens and turn.events]
    events = sum(len(turn.events) for turn in whole)
    mean = sum(turn.tokens for turn in whole) / events if events else 1.0
    tokens = 0.0
    for turn in turns:
        share = turn.tokens / len(turn.events) if turn.tokens and turn.events else mean
        tokens += share * sum(begins <= moment < ends for moment in turn.events)
    return tokens / (ends - begins)


def first_token_ms(turns: Iterable[Turn], *, kind: str = "short", turn: int | None = None) -> np.ndarray:
    """Times to the first text, in ms."""
    chosen = [one for one in turns if one.kind == kind and turn in (None, one.turn) and one.events]
    return np.array([1000 * (one.events[0] - one.started) for one in chosen])


def gaps_ms(turns: Iterable[Turn]) -> np.ndarray:
    """Times between two events with text of short turns, in ms."""
    return np.concatenate([1000 * np.diff(turn.events) for turn in turns if turn.kind == "short"] or [np.zeros(0)])


def last_chunk_ms(turns: Iterable[Turn]) -> np.ndarray:
    """Times from the last text to the end of the response, in ms."""
    return np.array([1000 * (turn.ended - turn.events[-1]) for turn in turns if turn.ended and turn.events])


def probe_ms(turns: Iterable[Turn], path: str) -> np.ndarray:
    """Times of a probe's answers, in ms."""
    return np.array([1000 * (turn.ended - turn.started) for turn in turns if turn.kind == path and turn.ended])


def percentile(values: np.ndarray, share: float) -> float:
    """Percentile, or NaN without values, which meets no bar."""
    return float(np.percentile(values, share)) if len(values) else float("nan")


def lost(turns: Iterable[Turn]) -> list[Turn]:
    """Requests that were accepted and have not ended as they should, and those that found no server."""
    return [
        turn for turn in turns if not turn.kind.startswith("/") and turn.error is not None and turn.status in (0, 200)
    ]
