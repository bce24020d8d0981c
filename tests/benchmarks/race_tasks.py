"""The race against TRL on public tasks, each from the same fine-tuned model to a held-out success rate.

Its clock is CPU time, with one thread on each side, so that other work on the machine disturbs it less. The races take
an hour or more, so that each is a command, and the page has those that are complete or were interrupted in TRL's run:

    python -m tests.benchmarks.race_tasks family_relationships     races, with records in runs/race_tasks
    python -m tests.benchmarks race_tasks                          writes the page
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel

from grpo.config.pipeline import PipelineConfig, load_config
from tests.benchmarks.measure import apart, use_all_cores
from tests.benchmarks.page import Findings, Table, here
from tests.benchmarks.race import CurvePoint, Race, curve_table, our_run, steps, trl_curve, verdict
from tests.benchmarks.triage import fine_tuned
from tests.places import ROOT

TITLE = "Time to a success rate on public tasks"
RECORDS = ROOT / "runs" / "race_tasks"
TARGETS = {"family_relationships": 0.6}
"""Held-out success at which a race ends, by family."""
ITERATIONS = 60
"""Iterations over which the learning rate decays for both, half of the config's, so that a race takes half as long."""
PATIENCE = 6.0
"""Limit of TRL's CPU time, as a multiple of our CPU time to the target."""
TRL_ROWS = 64
"""Episodes in one of TRL's training passes, which are all episodes of an optimizer step. This is the fastest setting:
16, 32 and 64 take 9.3, 9.1 and 8.7 s of CPU time per iteration of family_relationships."""
TRL_CONVERSATIONS = 256
"""Conversations in one of TRL's calls of `generate`."""
OURS, THEIRS = "ours.json", "theirs.json"


class Side(BaseModel):
    """A trainer's learning curve, and where and when it was measured."""

    curve: tuple[CurvePoint, ...]
    measured: str
    complete: bool = True
    """False while TRL's run goes on, and if it was interrupted."""


def race(family: str, records: Path = RECORDS) -> None:
    """Run our command, then TRL's trainer, unless they are complete in the records."""
    of_family, folder = _race(family, records), records / family
    if not of_family.model.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        apart(_write_start, of_family.config, folder)
    if not (folder / OURS).is_file():
        _write(folder / OURS, Side(curve=tuple(our_run(of_family, family)), measured=here()))
    if not (folder / THEIRS).is_file() or not _side(folder / THEIRS).complete:
        limit_cpu_s = PATIENCE * _side(folder / OURS).curve[-1].cpu_s
        apart(_theirs, of_family, limit_cpu_s, folder / THEIRS)


def measure(records: Path = RECORDS) -> Findings:
    """The races in the records, with the points that TRL's run has so far."""
    races = {family: _race(family, records) for family in TARGETS if (records / family / THEIRS).is_file()}
    if not races:
        return Findings(title=TITLE, text="Not measured: `python -m tests.benchmarks.race_tasks` runs the races.")
    sides = {family: (_side(records / family / OURS), _side(records / family / THEIRS)) for family in races}
    return Findings(
        title=TITLE,
        text=(
            "`grpo train` with its own server, from the shipped model after fine-tuning on the config's "
            "demonstrations: its clock runs from the command's start to the moment at which the checkpoint is written. "
            "TRL's GRPOTrainer, in one process that writes nothing, has the same start, scenarios, environment, "
            "reward, episodes per iteration and learning rates, and plays the turns through `rollout_func` with "
            f"left-padded `generate`. It is stopped after {PATIENCE:g} times our CPU time. Evaluations are excluded "
            "for both. One seed. Each side had one thread, and the machine had other work as well, so that CPU times "
            "are compared. Ours are those of all processes, Prefect's server included, spread evenly over the run. "
            + " ".join(_measured(family, *both) for family, both in sides.items())
        ),
        tables=(
            Table(head=("setting", *races), rows=_settings(tuple(races.values()))),
            *(curve_table(races[family], ours.curve, theirs.curve) for family, (ours, theirs) in sides.items()),
        ),
        gist=tuple(
            verdict(
                races[family],
                _cpu(ours.curve[-1]),
                _cpu(theirs.curve[-1]),
                measure=f"CPU time to {TARGETS[family]:.0%} held-out success, {family}",
                bound=3,
            )
            for family, (ours, theirs) in sides.items()
        ),
    )


def _race(family: str, records: Path) -> Race:
    config = load_config(ROOT / "data" / "configs" / f"{family}.yaml", (f"training.iterations={ITERATIONS}",))
    return Race(
        config=config,
        model=records / family / "start",
        target=TARGETS[family],
        rows=TRL_ROWS,
        conversations=TRL_CONVERSATIONS,
    )


def _side(path: Path) -> Side:
    return Side.model_validate_json(path.read_bytes())


def _write(path: Path, side: Side) -> None:
    path.write_text(side.model_dump_json(), encoding="utf-8")


def _measured(family: str, ours: Side, theirs: Side) -> str:
    interrupted = "" if theirs.complete else " TRL's run was interrupted before this limit."
    return f"{family}: ours on {ours.measured}; TRL on {theirs.measured}.{interrupted}"


def _cpu(point: CurvePoint) -> CurvePoint:
    """The point with its CPU time as its time."""
    return replace(point, seconds=point.cpu_s)


def _settings(races: Sequence[Race]) -> tuple[tuple[str, ...], ...]:
    """Rows of the settings, one column per race."""
    configs = [race.config for race in races]
    rows = {
        "seed": [str(config.seed) for config in configs],
        "target: held-out success": [f"{race.target:.0%}" for race in races],
        "episodes per iteration": [
            f"{config.rollout.scenarios} scenarios × {config.rollout.group_size}" for config in configs
        ],
        "optimizer steps per iteration": [
            f"TRL {steps(config)}, ours at most {steps(config)}, because groups with equal rewards are left out"
            for config in configs
        ],
        "learning rate": [
            f"{config.training.learning_rate:g}, {config.training.warmup_steps} steps of warm-up, "
            f"{config.training.lr_scheduler_type} over {config.training.iterations} iterations"
            for config in configs
        ],
        "loss": [str(config.training.algorithm) for config in configs],
        "precision": ["float32"] * len(configs),
        "ours: tokens in a training pass": [f"{config.training.microbatch_tokens:,}" for config in configs],
        "TRL: episodes in a training pass": [str(race.rows) for race in races],
        "TRL: conversations in a call of `generate`": [str(race.conversations) for race in races],
    }
    return tuple((name, *cells) for name, cells in rows.items())


def _write_start(config: PipelineConfig, folder: Path) -> None:
    """The policy after fine-tuning, in `folder/start`."""
    use_all_cores()
    fine_tuned(config, folder)


def _theirs(of_family: Race, limit_cpu_s: float, path: Path) -> None:
    """TRL's side, in a fresh process."""

    def record(curve: list[CurvePoint], *, complete: bool = False) -> None:
        _write(path, Side(curve=tuple(curve), measured=here(), complete=complete))

    record(trl_curve(of_family, limit_cpu_s=limit_cpu_s, record=record), complete=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.race_tasks")
    parser.add_argument("family", choices=sorted(TARGETS))
    os.environ["OMP_NUM_THREADS"] = "1"  # in the processes of both sides
    race(parser.parse_args().family)
