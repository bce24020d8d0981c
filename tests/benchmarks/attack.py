"""64 honest streams, with and without one hostile key: latency of the others, and what they lose."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grpo.config.serving import CallerLimits
from grpo.serving.access.keys import KeyStore
from tests.benchmarks.attack_load import KINDS, LIMITED, Answers
from tests.benchmarks.page import Findings, Table
from tests.benchmarks.serve_load import Turn, play
from tests.benchmarks.serve_rows import Bar, first_token_ms, lost, percentile, probe_ms, table, worst
from tests.benchmarks.serve_sides import Side, ours, unending
from tests.places import DESK_MODEL, ROOT

SECONDS = 5 * float(os.environ.get("BENCH_SCALE", "1"))
WARM_S = 2.0
STREAMS = 64
VARY_TOKENS = 16
"""If all replies were of equal length, the streams would end turns at once, and TTFT would measure their queue."""
ROUNDS = 5
NOBODY = "nobody"
TEXT = (
    "64 streams of support conversations on the desk clerk, as in the serving part, while one key of another client "
    "does the worst: texts of 4 MB, 10⁶ token ids, 1,999 messages, WebSocket frames of 1.8 million tokens, wide and "
    "deep JSON, heads that never end, 2,000 silent sockets, 500 WebSockets, tools of 4 MB, blanks, arguments of calls, "
    "bodies that never arrive, refusals by a limit, frames that are sent and left. Requests are sent by four "
    "connections at once, each 50 ms after its answer whatever that asks for, and every attack has a key of its own, "
    "so that it begins with the whole budget of refused work. Before each attack the same streams run without one, and "
    f"TTFT is the median of the p99 of {ROUNDS} rounds of each, which take turns, and `/health` p99 is over all. "
    "`/health` is asked ten times a second by a process of its own. The processes of the clients share the cores with "
    "the server."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Latency of the honest streams during one attack."""

    first_token_ms: np.ndarray
    """One value for each turn of the honest streams."""
    health_ms: np.ndarray
    lost: int
    answers: Answers


def measure() -> Findings:
    """Measure every attack, each after a round without one."""
    rows, ratios, healths, lost_turns = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="grpo-attack-") as place:
        root = Path(place)
        clerk = root / "clerk"
        shutil.copytree(DESK_MODEL, clerk)
        unending(clerk)
        with ours(str(clerk), root / "home") as side:
            keys = KeyStore(root / "home" / "keys.json")
            attacked_by(side, NOBODY, "")
            for kind, description in KINDS.items():
                limits = CallerLimits(tokens_per_minute=50) if kind == LIMITED else None
                calm, attacked = [], []
                for turn in range(ROUNDS):
                    calm.append(attacked_by(side, NOBODY, ""))
                    attacked.append(attacked_by(side, kind, keys.create(f"hostile-{kind}-{turn}", ("chat",), limits)))
                before, after = (_median_p99([each.first_token_ms for each in played]) for played in (calm, attacked))
                ratios.append(after / before)
                healths.append(_p99([each.health_ms for each in attacked]))
                lost_turns.append(sum(each.lost for each in attacked))
                health = f"{_p99([each.health_ms for each in calm]):,.0f} → {healths[-1]:,.0f} ms"
                cells = (f"{before:,.0f} ms", f"{after:,.0f} ms", f"{ratios[-1]:.2f}", health, str(lost_turns[-1]))
                rows.append((description, *cells, attacked[-1].answers.text()))
                sys.stderr.write(f"{rows[-1]}\n")
    bars = [
        Bar(measure="/health p99, at most", value=worst(healths), at_most=100, unit="ms"),
        Bar(measure="TTFT p99 ÷ that without the attack, at most", value=worst(ratios), at_most=1.5),
        Bar(measure="accepted requests lost", value=sum(lost_turns), at_most=0),
    ]
    head = ("one hostile key", "TTFT p99 without", "with", "ratio", "/health p99", "lost", "answers to it")
    return Findings(title="Serving under attack", text=TEXT, tables=(table(bars), Table(head=head, rows=tuple(rows))))


def _p99(rounds: list[np.ndarray]) -> float:
    return percentile(np.concatenate(rounds), 99)


def _median_p99(rounds: list[np.ndarray]) -> float:
    """Median over the rounds, because a stall of the machine in one round would decide the p99 of them all."""
    return statistics.median(percentile(values, 99) for values in rounds)


def attacked_by(side: Side, kind: str, key: str) -> Round:
    """Play the honest streams and the probes during an attack."""
    command = [sys.executable, "-m", "tests.benchmarks.attack_load", kind, str(side.port), side.model, key]
    attack = None
    if kind != NOBODY:
        command.append(str(WARM_S + SECONDS))
        attack = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with ThreadPoolExecutor(1) as pool:
        probing = pool.submit(play, side.load(seconds=WARM_S + SECONDS, probes=("/health",)))
        turns = play(side.load(seconds=WARM_S + SECONDS, streams=STREAMS, vary_tokens=VARY_TOKENS, finish=True))
        probes = probing.result()
    answers = Answers() if attack is None else Answers.model_validate_json(attack.communicate(timeout=120)[0])
    begins = min(turn.started for turn in turns) + WARM_S
    late: list[Turn] = [turn for turn in turns if turn.started >= begins]
    time.sleep(0.5)
    return Round(
        first_token_ms=first_token_ms(late),
        health_ms=probe_ms([probe for probe in probes if probe.started >= begins], "/health"),
        lost=len(lost(turns)),
        answers=answers,
    )
