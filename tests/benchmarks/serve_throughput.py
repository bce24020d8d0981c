"""Tokens a second of 64 streams, and latency of 16, of each server and of the sampler without one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.page import Table
from tests.benchmarks.serve_bare import bare_rate
from tests.benchmarks.serve_load import Turn, play
from tests.benchmarks.serve_rows import (
    Bar,
    first_token_ms,
    gaps_ms,
    percentile,
    tokens_per_second,
)
from tests.benchmarks.serve_sides import BARE, BATCHING, DEFAULT, EACH, OURS, VLLM, Side, long_line

STREAMS, FEW, ROUNDS = 64, 16, 3
LONG_TOKENS = 500
_SETTLE_S = 0.3
"""Time in which a server drops the requests that were cut, before it rests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Turns of one round, and the moment from which they count."""

    turns: Sequence[Turn]
    begins: float
    ends: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return tokens_per_second(self.turns, self.begins, self.ends)


def play_round(side: Side, seconds: float, warm_s: float, **settings: object) -> Round:
    """Wake a server, play a load on it, and let it rest; the first seconds do not count."""
    side.resume()
    turns = play(side.load(seconds=warm_s + seconds, **settings))
    time.sleep(_SETTLE_S)
    side.pause()
    first = min(turn.started for turn in turns)
    return Round(turns=turns, begins=first + warm_s, ends=first + warm_s + seconds)


def throughput(title: str, sides: Sequence[Side], seconds: float, warm_s: float) -> tuple[Table, list[Bar]]:
    """Measure 64 streams of each side in turn."""
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    rounds: dict[str, Round] = {}
    for _ in range(ROUNDS):
        for side in sides:
            if side.name == BARE:
                side.resume()
                load = side.load(streams=STREAMS, seconds=warm_s + seconds)
                rates[BARE].append(bare_rate(side, load, warm_s))
                side.pause()
                continue
            rounds[side.name] = play_round(side, seconds, warm_s, streams=STREAMS)
            rates[side.name].append(rounds[side.name].rate)
    speed = {name: statistics.median(values) for name, values in rates.items()}
    rows = []
    for name, rate in speed.items():
        latency = _latency(rounds[name]) if name in rounds else ("–", "–", "–")
        rows.append((name, f"{rate:,.0f}", f"{speed[OURS] / rate:.2f}", *latency))
    head = (f"{title}, {STREAMS} streams", "tokens/s", "ours is faster by", "TTFT p50", "ITL p50", "turn p50")
    return Table(head=head, rows=tuple(rows)), _ratios(title, speed)


def _latency(round_: Round) -> tuple[str, str, str]:
    turns = [turn for turn in round_.turns if turn.started >= round_.begins]
    whole = [1000 * (turn.ended - turn.started) for turn in turns if turn.ended]
    values = percentile(first_token_ms(turns), 50), percentile(gaps_ms(turns), 50), _median(whole)
    first, gap, turn = (f"{value:,.0f} ms" if value == value else "–" for value in values)
    return first, gap, turn


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def _ratios(title: str, speed: Mapping[str, float]) -> list[Bar]:
    bounds = {BATCHING: 5.0, DEFAULT: 10.0, VLLM: 0.8, BARE: 0.75}
    return [
        Bar(measure=f"{title}, {STREAMS} streams: tokens/s ÷ {name}", value=speed[OURS] / speed[name], at_least=bound)
        for name, bound in bounds.items()
        if name in speed
    ]


def latency(folder: Path, sides: Sequence[Side], seconds: float, warm_s: float) -> tuple[Table, list[Bar]]:
    """Measure 16 streams of each server in turn, then our server while long prompts come, and its second turns."""
    first: dict[str, list[float]] = {}
    rows = []
    served = [side for side in sides if side.name != BARE]
    rounds: dict[str, list[Turn]] = {side.name: [] for side in served}
    for _ in range(ROUNDS):
        for side in served:
            rounds[side.name] += play_round(side, seconds, warm_s, streams=FEW).turns[FEW:]
    for name, turns in rounds.items():
        values, gaps = first_token_ms(turns), gaps_ms(turns)
        first[name] = [percentile(values, 50), percentile(values, 99)]
        cells = (*first[name], percentile(gaps, 50), percentile(gaps, 99))
        rows.append((name, *(f"{cell:,.1f} ms" for cell in cells)))
    mine = next(side for side in served if side.name == OURS)
    bars = [
        Bar(measure=f"{FEW} streams: TTFT p50", value=first[OURS][0], at_most=30, unit="ms"),
        Bar(measure=f"{FEW} streams: TTFT p99", value=first[OURS][1], at_most=150, unit="ms"),
    ]
    if BATCHING in first:
        ratio = first[OURS][1] / first[BATCHING][1]
        bars.append(Bar(measure=f"{FEW} streams: TTFT p99 ÷ {BATCHING}", value=ratio, at_most=0.2))
    line = long_line(folder, LONG_TOKENS)
    each = next(side for side in served if side.name == EACH)
    turns = play_round(each, seconds, warm_s, streams=FEW, long_line=line, long_every_s=0.5).turns
    gaps = gaps_ms(turns)
    ratio = percentile(gaps, 99) / percentile(gaps, 50)
    bars.append(
        Bar(measure=f"{LONG_TOKENS}-token prompts arrive: ITL p99 ÷ median of the others", value=ratio, at_most=3)
    )
    turns = play_round(mine, seconds, 0, long_line=line, long_every_s=0.4, long_turns=2).turns
    cold, second = (_median(list(first_token_ms(turns, kind="long", turn=turn))) for turn in (0, 1))
    bars.append(
        Bar(measure=f"second turn after {LONG_TOKENS} tokens: TTFT ÷ the first's", value=second / cold, at_most=0.5)
    )
    head = (f"{FEW} streams", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99")
    return Table(head=head, rows=tuple(rows)), bars


def start(stack: ExitStack, starts: Sequence[Callable[[], object]]) -> list[Side]:
    """Start servers one after another; each rests at once."""
    sides = []
    for begin in starts:
        side = stack.enter_context(begin())  # type: ignore[arg-type]
        assert isinstance(side, Side)
        side.pause()
        sides.append(side)
    return sides
