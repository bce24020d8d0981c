"""Overload, and the cost of log, metrics, and a mirror without its tracking server."""

from __future__ import annotations

import re
import statistics
import threading
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil

from tests.benchmarks.page import Table
from tests.benchmarks.serve_load import Turn, play
from tests.benchmarks.serve_rows import Bar, last_chunk_ms, lost, percentile, probe_ms
from tests.benchmarks.serve_sides import Side
from tests.benchmarks.serve_throughput import FEW, ROUNDS, STREAMS, play_round

EXCESS = 10
_CACHE = re.compile(r"^vllm:prefix_cache_bytes\{.*\} (\S+)$", re.MULTILINE)


def overload(side: Side, seconds: float, warm_s: float) -> tuple[Table, list[Bar]]:
    """Offer ten times the turns that the server can answer, by clients that do not wait as they are asked to."""
    round_ = play_round(side, seconds / 6, warm_s, streams=STREAMS, turns=1)
    peak = round_.rate
    turns_s = sum(round_.begins <= (turn.ended or 0) < round_.ends for turn in round_.turns) / (seconds / 6)
    side.resume()
    memory: list[float] = []
    over = threading.Event()

    def watch() -> None:
        server = psutil.Process(side.process.pid)
        while not over.wait(1.0):
            resident = sum(process.memory_info().rss for process in (server, *server.children(recursive=True)))
            memory.append((resident - _cache_bytes(side)) / 2**20)

    with ThreadPoolExecutor(2) as pool:
        watching = pool.submit(watch)
        probing = pool.submit(play, side.load(seconds=seconds, probes=("/health",)))
        turns = play(side.load(seconds=seconds, rate=EXCESS * turns_s, turns=1, obeys=False, finish=True))
        probes = probing.result()
        over.set()
        watching.result()
    side.pause()
    begins = min(turn.started for turn in turns)
    good = [turn for turn in turns if turn.status == 200 and turn.error is None and turn.ended]
    inside = [turn for turn in good if begins + warm_s <= (turn.ended or 0) < begins + seconds]
    rate = sum(turn.tokens for turn in inside) / (seconds - warm_s)
    settled = memory[len(memory) // 5 :]
    bars = [
        Bar(measure=f"{EXCESS} × capacity: goodput ÷ peak", value=rate / peak, at_least=0.9),
        Bar(measure="memory at most, above the least", value=max(settled) - min(settled), at_most=50, unit="MiB"),
        Bar(measure="/health p99", value=percentile(probe_ms(probes, "/health"), 99), at_most=50, unit="ms"),
        Bar(measure="accepted requests lost", value=len(lost(turns)), at_most=0),
    ]
    refused = sum(turn.status == 503 for turn in turns)
    row = (f"{peak:,.0f}", f"{EXCESS * turns_s:,.0f}", f"{rate:,.0f}", f"{len(good):,}", f"{refused:,}")
    return Table(head=("peak tokens/s", "offered turns/s", "tokens/s", "answered", "refused"), rows=(row,)), bars


def _cache_bytes(side: Side) -> float:
    match = _CACHE.search(_metrics(side))
    return float(match[1]) if match else 0.0


def _metrics(side: Side) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{side.port}/metrics", headers={"Authorization": f"Bearer {side.key}"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        text: str = response.read().decode()
    return text


def costs(sides: Sequence[Side], seconds: float, warm_s: float) -> tuple[Table, list[Bar]]:
    """Throughput with and without log and metrics, the wait for the log at the end of a turn, and a scrape."""
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(2 * ROUNDS - 1):
        for side in sides:
            rates[side.name].append(play_round(side, seconds, warm_s, streams=STREAMS).rate)
    mine = sides[0]
    ratios = {
        side.name: statistics.median(
            1 - with_ / without for with_, without in zip(rates[mine.name], rates[side.name], strict=True)
        )
        for side in sides[1:]
    }
    turns = play_round(mine, seconds, 0, streams=FEW, probes=("/metrics",)).turns
    bars = [
        Bar(
            measure="16 streams: last text to end of response, p99",
            value=_p99(turns, last_chunk_ms),
            at_most=10,
            unit="ms",
        ),
        *(
            Bar(measure=f"throughput that {name} would have more", value=100 * ratio, at_most=bound, unit="%")
            for (name, ratio), bound in zip(ratios.items(), (3.0, 1.0), strict=True)
        ),
        Bar(
            measure="a scrape of /metrics during 16 streams, p99",
            value=percentile(probe_ms(turns, "/metrics"), 99),
            at_most=20,
            unit="ms",
        ),
    ]
    rows = tuple((name, f"{statistics.median(values):,.0f}") for name, values in rates.items())
    return Table(head=("server", "tokens/s"), rows=rows), bars


def mirror_cost(mine: Side, mirrored: Side, seconds: float, warm_s: float) -> Bar:
    """Wait for the end of a turn with a mirror whose tracking server is dead, against that without a mirror."""
    waits: dict[str, list[float]] = {side.name: [] for side in (mine, mirrored)}
    for _ in range(ROUNDS):
        for side in (mine, mirrored):
            round_ = play_round(side, seconds, warm_s, streams=FEW)
            waits[side.name] += [
                turn.ended - turn.started for turn in round_.turns if turn.ended and turn.started >= round_.begins
            ]
    with_mirror, without = (percentile(np.asarray(waits[side.name]), 99) for side in (mirrored, mine))
    return Bar(
        measure="16 streams: turn p99 with a dead tracking server ÷ without a mirror",
        value=with_mirror / without,
        at_most=1.1,
    )


def _p99(turns: Sequence[Turn], values: Callable[[Sequence[Turn]], object]) -> float:
    return percentile(values(turns), 99)  # type: ignore[arg-type]
