"""Section of docs/internals/simulations.md on 8, 64 and 1,000 GPUs, by the simulator. Nothing of it was measured.

    python -m tests.benchmarks.simulated_gpus           simulates for some minutes, and writes the section
    python -m tests.benchmarks.simulated_gpus --show    prints it only

The page states each parameter with its source. `tests.benchmarks.simulation` compares the simulator with a measurement.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from tests.benchmarks.page import Table
from tests.benchmarks.simulated_servers import Episode, SimulatedTurn, Speed
from tests.benchmarks.simulator import Outcome, Plan, Simulation
from tests.places import INTERNALS
from tests.scale import keep

SECTION = "## Waiting, simulated"
WEIGHTS = 7.6e9
FLOPS, BANDWIDTH = 989e12, 3.35e12
"""Peak of an H100 SXM in bfloat16, and bytes per second of its memory, by its data sheet."""
LINK = 12.5e9
"""Bytes per second of the process that sends weights to servers: 100 Gbit/s."""
KV_BYTES = 28 * 2 * 4 * 128 * 2
"""Bytes of keys and values of a token of Qwen2.5-7B: layers, keys and values, heads, size of a head, 2 bytes."""
CONTEXT = 2500
"""Tokens of a conversation at a step, on average."""
SPEED = Speed(
    slots=256,
    step_s=2 * WEIGHTS / (0.6 * BANDWIDTH),
    further_s=CONTEXT * KV_BYTES / (0.6 * BANDWIDTH),
    request_s=0.001,
    prompt_token_s=2 * WEIGHTS / (0.4 * FLOPS),
)
PER_SERVER, GROUP = 64, 8
TURNS, TOKENS = 8, 200
MOST_TURNS, MOST_TOKENS, MOST_WAIT_S = 40, 1024, 60.0
FIRST_PROMPT, ANSWER = 1000, 200
HASH_S = 3 * 4 * WEIGHTS / 1.67e9
WRITE_S = 12 * WEIGHTS / 2e9
OPEN_S = 20.0
SMALLEST_PART = 125
"""Of more GPUs an eighth is simulated, with an eighth of the episodes, and with the weights of all to send."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row of the table."""

    gpus: int
    episodes: int
    spread: float
    """Sigma of the number of turns, which is lognormal."""
    wait_s: float
    """Median wait for a tool."""
    is_continuous: bool
    """Half of the GPUs generate and half train. In stages, all generate and then all train."""
    max_staleness: int
    sends_files: bool
    """True for weights as files over one link, false for a transfer between GPUs."""


def episodes(spread: float, wait_s: float, seed: int = 0) -> Iterator[Episode]:
    """Endless episodes. Turns, tokens of a turn and waits are lognormal, with sigma `spread`, 0.5 and 1."""
    rng = np.random.default_rng(seed)
    while True:
        count = int(np.clip(round(rng.lognormal(np.log(TURNS), spread)), 1, MOST_TURNS))
        tokens = np.clip(rng.lognormal(np.log(TOKENS), 0.5, count), 1, MOST_TOKENS).astype(int)
        waits = np.minimum(rng.lognormal(np.log(wait_s), 1.0, count), MOST_WAIT_S)
        yield tuple(
            SimulatedTurn(
                prompt=FIRST_PROMPT if turn == 0 else ANSWER, tokens=int(tokens[turn]), wait_s=float(waits[turn])
            )
            for turn in range(count)
        )


@cache
def gpu_seconds(spread: float) -> tuple[float, float]:
    """GPU-seconds of an episode in full batches, and of an update on it: 8 FLOP per weight and token at 30 %."""
    drawn = episodes(spread, 1.0)
    turns = [turn for _ in range(4000) for turn in next(drawn)]
    generated, read = sum(turn.tokens for turn in turns), sum(turn.prompt for turn in turns)
    generating = (
        generated * SPEED.step(PER_SERVER) / PER_SERVER + read * SPEED.prompt_token_s + len(turns) * SPEED.request_s
    )
    return generating / 4000, (generated + read) / 4000 * 8 * WEIGHTS / (0.3 * FLOPS)


def plan(case: Case) -> Plan:
    """The run of a case."""
    parts = 8 if case.gpus > SMALLEST_PART else 1
    trainers = case.gpus // 2 if case.is_continuous else case.gpus
    servers = case.gpus - trainers if case.is_continuous else case.gpus
    return Plan(
        mode="continuous" if case.is_continuous else "stages",
        servers=round(servers / parts),
        speed=SPEED,
        groups=case.episodes // GROUP // parts,
        group_size=GROUP,
        concurrency=PER_SERVER * round(servers / parts),
        max_staleness=case.max_staleness,
        update_s=HASH_S + WRITE_S if case.sends_files else 2.0,
        episode_update_s=gpu_seconds(case.spread)[1] * parts / trainers,
        load_s=4 * WEIGHTS * servers / LINK + OPEN_S if case.sends_files else 4.0,
        updates=case.max_staleness + 6 if case.is_continuous else 4,
        warm=case.max_staleness + 2 if case.is_continuous else 1,
        ahead=case.max_staleness + 1,
    )


def simulate(case: Case) -> Outcome:
    """Means of a case in its steady state."""
    return Simulation(plan(case), episodes(case.spread, case.wait_s, seed=1)).run()


def used(case: Case, outcome: Outcome) -> float:
    """Share of the GPUs' time that the trained episodes need in full batches."""
    return case.episodes * sum(gpu_seconds(case.spread)) / (case.gpus * outcome.update_s)


def cases() -> Iterator[Case]:
    """Rows of the table."""
    runs = ((8, 512, 0.5, 1.0), (8, 512, 1.0, 1.0), (8, 512, 1.0, 10.0), (64, 512, 1.0, 1.0), (64, 4096, 1.0, 1.0))
    for gpus, count, spread, wait_s in (*runs, (1000, 64000, 1.0, 1.0)):
        for files in (True, False):
            for most in (None, 1, 4):
                if most != 1 or count == 512:
                    yield Case(
                        gpus=gpus,
                        episodes=count,
                        spread=spread,
                        wait_s=wait_s,
                        is_continuous=most is not None,
                        max_staleness=most or 0,
                        sends_files=files,
                    )


def row(case: Case) -> tuple[str, ...]:
    """A case and what the simulator says of it."""
    outcome = simulate(case)
    mode = f"continuous, {case.max_staleness}" if case.is_continuous else "stages"
    return (
        f"{case.gpus:,}",
        f"{case.episodes:,}",
        f"{case.spread:g}",
        f"{case.wait_s:g} s",
        "files" if case.sends_files else "GPU to GPU",
        mode,
        f"{outcome.update_s:,.0f}",
        f"{used(case, outcome):.0%}",
        f"{outcome.dropped:.0%}" if case.is_continuous else "–",
        f"{outcome.staleness:.1f}" if case.is_continuous else "–",
    )


def parameters() -> Table:
    """What the simulation assumes, with the source of each number."""
    through = f"weights, and {CONTEXT:,} tokens of keys and values, through 60 % of an H100's bandwidth: arithmetic"
    files = (
        f"{HASH_S:.0f} s for three hashes, {WRITE_S:.0f} s for the checkpoint at 2 GB/s, {OPEN_S:g} s to open the "
        f"weights, and {4 * WEIGHTS / LINK:.1f} s a server through 100 Gbit/s of the process that sends them"
    )
    episode = (
        f"median {TURNS} turns with sigma `spread`, at most {MOST_TURNS}; median {TOKENS} tokens a turn with sigma "
        f"0.5; answers of {ANSWER} tokens; waits for tools with sigma 1, at most {MOST_WAIT_S:g} s"
    )
    step = f"{SPEED.step_s * 1e3:.1f} ms, and {SPEED.further_s * 1e3:.2f} ms for each further turn"
    prompt = f"{SPEED.prompt_token_s * 1e6:.0f} µs a token and {SPEED.request_s * 1e3:g} ms a turn"
    rows = (
        (
            "weights",
            f"{WEIGHTS / 1e9:g} B, bfloat16 in servers, float32 in files",
            "assumed: `grpo serve` computes in float32",
        ),
        ("step of a server", step, through),
        ("reading a prompt", prompt, "40 % of an H100's peak: arithmetic; the millisecond is a guess"),
        ("at once", f"{PER_SERVER} episodes a server", "assumed"),
        ("an episode", episode, "guesses; `spread` and the median wait `tool` vary"),
        ("an update", "8 FLOP for each weight and token at 30 % of the peak", "arithmetic; 30 % is a guess"),
        ("weights as files", files, "rate of hashes measured, the rest arithmetic"),
        ("weights GPU to GPU", "2 s for an update, 4 s until servers have them", "assumed: grpo has no such transfer"),
    )
    return Table(head=("parameter", "value", "source"), rows=rows)


def main() -> None:
    """Simulate, and write the section."""
    head = ("GPUs", "episodes", "spread", "tool", "weights", "mode", "s", "GPU time used", "dropped", "staleness")
    rows = []
    for case in cases():
        rows.append(row(case))
        sys.stderr.write(f"{' '.join(rows[-1])}\n")
    table = Table(head=head, rows=tuple(rows)).markdown()
    section = f"{TEXT}\n\n{parameters().markdown()}\n\n{COLUMNS}\n\n{table}"
    if "--show" in sys.argv[1:]:
        sys.stdout.write(f"{section}\n")
    else:
        keep(section, INTERNALS / "simulations.md", SECTION)


TEXT = """\
Written by `python -m tests.benchmarks.simulated_gpus`. Nobody has run this: all of it is simulation. The simulator
plans events in the order of their times: turns on servers with slots, waits for tools, updates, and new weights. In the
continuous mode, the code of the real rollout decides which groups begin, which ones are trained on, and which episodes
are dropped. A step of a server takes longer with more turns. A turn that begins under new weights reads its whole
conversation again. Servers that fail, memory, and links that both sides share are not simulated."""

COLUMNS = """\
In stages all GPUs generate and then all GPUs train. In the continuous mode half of them generate and half train, with
the `max_staleness` that the row names. `s` are the seconds from one update to the next. `GPU time used` is the share of
the GPUs' time that the trained episodes would need in full batches. Batches that are not full, dropped episodes, files
and waiting are the rest. Of 1,000 GPUs an eighth is simulated, with an eighth of the episodes, and with the time that
the weights of all servers take."""

if __name__ == "__main__":
    main()
