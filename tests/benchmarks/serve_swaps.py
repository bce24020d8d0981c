"""Change of the champion under load, and the end of one of two processes."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from grpo_local.managed_process import free_port
from grpo_tasks.registry import registry
from tests.benchmarks.serve_load import Load, Turn, play
from tests.benchmarks.serve_rows import Bar, first_token_ms, lost, percentile
from tests.benchmarks.serve_sides import Side, ours
from tests.benchmarks.serve_throughput import STREAMS, play_round
from tests.grpo.registry.making import put_into_service
from tests.grpo.registry.test_served_agent import registered
from tests.haproxy import HAPROXY, haproxy

EVERY_S = 10.0
VERSIONS = 3
"""Two stay loaded, so that each of three in turn is loaded again."""
_BEFORE_S, _AFTER_S = 3.0, 1.0
"""Time around the first reply of another version that counts as the swap; loading ends before that reply."""


def swaps(folder: Path, home: Path, seconds: float) -> list[Bar]:
    """Promote one version after another under 64 streams."""
    home.mkdir(parents=True, exist_ok=True)
    tracking = f"sqlite:///{home}/mlflow.db"
    os.environ |= {"MLFLOW_TRACKING_URI": tracking, "GRPO_HOME": str(home)}  # whose key signs the versions
    versions = [
        registered(home, folder, run_key=f"run-{index}", rollout={"max_context": 1024}) for index in range(VERSIONS)
    ]
    models, name = registry(), versions[0].name

    def promote(index: int) -> str:
        version = versions[index % VERSIONS].version
        put_into_service(models, name, version)
        return f"{name}/{version}"

    promote(0)
    environment = {"MLFLOW_TRACKING_URI": tracking}
    with ours(f"models:/{name}@champion", home, environment=environment) as side, ThreadPoolExecutor(1) as pool:
        load = side.load(seconds=seconds, streams=STREAMS, system=None, obeys=False, finish=True)
        playing = pool.submit(play, load)
        moves: list[tuple[float, str]] = []
        end = time.monotonic() + seconds
        while time.monotonic() + EVERY_S < end:
            time.sleep(EVERY_S)
            moves.append((time.monotonic(), promote(len(moves) + 1)))
        turns = playing.result()
    return _swap_bars(turns, moves)


def _swap_bars(turns: Sequence[Turn], moves: Sequence[tuple[float, str]]) -> list[Bar]:
    """Bars of turns during moves of the alias, each a moment and the version from then on."""
    versions: dict[str, set[str]] = defaultdict(set)
    for turn in turns:
        if turn.version is not None:
            versions[turn.conversation].add(turn.version)
    swapped = []
    for moment, version in moves:
        begun = (turn.started for turn in turns if (turn.version or "").startswith(f"{version}-"))
        swapped.append(min((start for start in begun if start > moment), default=math.nan))

    def near(turn: Turn) -> bool:
        return any(-_BEFORE_S < turn.started - moment < _AFTER_S for moment in swapped)

    during = percentile(first_token_ms(filter(near, turns)), 99)
    apart = percentile(first_token_ms(turn for turn in turns if not near(turn)), 99)
    return [
        Bar(
            measure=f"swaps that conversations met, of {len(moves)}",
            value=sum(math.isfinite(moment) for moment in swapped),
            at_least=len(moves) - 1,
        ),
        Bar(
            measure=f"errors of {len(turns):,} requests during the swaps, without a retry",
            value=sum(turn.error is not None for turn in turns),
            at_most=0,
        ),
        Bar(
            measure="conversations with two versions",
            value=sum(len(names) > 1 for names in versions.values()),
            at_most=0,
        ),
        Bar(measure="TTFT p99 around a swap ÷ otherwise", value=during / apart, at_most=2),
    ]


def drain(folder: Path, home: Path, seconds: float, warm_s: float) -> list[Bar]:
    """End one of two processes behind a proxy at half of their load, and the other one when it is idle."""
    with ours(str(folder), home) as one, ours(str(folder), home) as two:
        alone = play_round(one, seconds / 2, warm_s, streams=STREAMS, turns=1)
        one.resume()
        counted = sum(alone.begins <= (turn.ended or 0) < alone.ends for turn in alone.turns)
        rate = 0.5 * counted / (alone.ends - alone.begins)  # both share the cores: two serve no more than one
        with _proxied(two, (one.port, two.port), home) as (load, proxy), ThreadPoolExecutor(1) as pool:
            settings = {"seconds": seconds, "rate": rate, "turns": 1, "obeys": False, "finish": True}
            playing = pool.submit(play, load.model_copy(update=settings))
            time.sleep(seconds / 2)
            one.process.send_signal(signal.SIGTERM)
            turns = playing.result()
            one.process.wait(60)
        began = time.monotonic()
        two.process.send_signal(signal.SIGTERM)
        two.process.wait(60)
        idle_s = time.monotonic() - began
    failed = len(lost(turns)) + sum(turn.status not in (0, 200) for turn in turns)
    return [
        Bar(measure=f"SIGTERM of one of two behind {proxy}: lost of {len(turns):,}", value=failed, at_most=0),
        Bar(measure="SIGTERM of an idle server: its exit", value=idle_s, at_most=1, unit="s"),
    ]


@contextmanager
def _proxied(side: Side, ports: tuple[int, int], folder: Path) -> Iterator[tuple[Load, str]]:
    """Load on two servers behind haproxy; without it the client itself alternates, and asks the other one again."""
    base = side.load(seconds=1.0)
    if HAPROXY is None:
        yield base.model_copy(update={"ports": ports, "redispatch": True}), "a client that alternates"
        return
    port = free_port()
    with haproxy(port, ports, folder, retry_on="conn-failure empty-response 503", connect_s=1, look_ms=200):
        time.sleep(1.0)
        yield base.model_copy(update={"ports": (port,)}), "haproxy"
