"""The race against TRL on public tasks, each from the same fine-tuned model to a held-out success rate.

A race takes ten minutes to an hour, so each one is a command of its own. The page has the races that are complete, and
the ones that were interrupted in TRL's run. Run nothing else on the machine during a race:

    python -m tests.benchmarks.race_tasks family_relationships     races, with records in runs/race_tasks
    python -m tests.benchmarks race_tasks                          writes the page
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A family's race: a config of data/configs, and what ends the race."""

    target: float
    """Held-out success at which the race ends."""
    iterations: int
    """Iterations over which the learning rate decays for both."""
    samples: int
    """Evaluation episodes per held-out scenario."""
    rows: int
    """Episodes in one of TRL's training passes."""
    conversations: int
    """Conversations in one of TRL's calls of `generate`."""


COURSES = {
    # half of the config's iterations, so that the race takes half as long. 16, 32 and 64 rows, which are all of an
    # optimizer step, take TRL 9.3, 9.1 and 8.7 s of CPU time per iteration
    "family_relationships": Course(target=0.6, iterations=60, samples=1, rows=64, conversations=256),
    # 32 rows are all of an optimizer step. Fewer were not compared
    "family_relationships_smollm2": Course(target=0.75, iterations=12, samples=2, rows=32, conversations=128),
    # TRL's first iteration with rows and conversations: 64 and 256 took 105 s, 32 and 256 110 s, 16 and 256 101 s,
    # 16 and 64 86 s, 16 and 32 90 s
    "babyai": Course(target=0.6, iterations=24, samples=1, rows=16, conversations=64),
}
PATIENCE = 6.0
"""Time limit of TRL's run, as a multiple of the time that ours took to the target."""
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
        limit_s = PATIENCE * _side(folder / OURS).curve[-1].seconds
        apart(_theirs, of_family, limit_s, folder / THEIRS)


def measure(records: Path = RECORDS) -> Findings:
    """The races in the records, with the points that TRL's run has so far."""
    races = {family: _race(family, records) for family in COURSES if (records / family / THEIRS).is_file()}
    if not races:
        return Findings(title=TITLE, text="Not measured: `python -m tests.benchmarks.race_tasks` runs the races.")
    sides = {family: (_side(records / family / OURS), _side(records / family / THEIRS)) for family in races}
    return Findings(
        title=TITLE,
        text=(
            "`grpo train` with its own server, from the config's model after fine-tuning on its "
            "demonstrations: its clock runs from the command's start to the moment at which the checkpoint is written. "
            "TRL's GRPOTrainer, in one process that writes nothing, has the same start, scenarios, environment, "
            "reward, episodes per iteration and learning rates, and plays the turns through `rollout_func` with "
            f"left-padded `generate`. It is stopped after {PATIENCE:g} times our time. Evaluations are excluded "
            "for both. One seed was run. CPU times are sums over all processes. Ours include Prefect's server, and are "
            "spread evenly over the run. " + " ".join(_measured(family, *both) for family, both in sides.items())
        ),
        tables=(
            Table(head=("setting", *races), rows=_settings(tuple(races.values()))),
            *(
                curve_table(races[family], ours.curve, theirs.curve, task=family)
                for family, (ours, theirs) in sides.items()
            ),
        ),
        gist=tuple(
            verdict(
                races[family],
                ours.curve[-1],
                theirs.curve[-1],
                measure=f"time to {COURSES[family].target:.0%} held-out success, {family}",
                bound=5,
            )
            for family, (ours, theirs) in sides.items()
        ),
    )


def _race(family: str, records: Path) -> Race:
    course = COURSES[family]
    of_course = (f"training.iterations={course.iterations}", f"evaluation.samples={course.samples}")
    return Race(
        config=load_config(ROOT / "data" / "configs" / f"{family}.yaml", of_course),
        model=records / family / "start",
        target=course.target,
        rows=course.rows,
        conversations=course.conversations,
    )


def _side(path: Path) -> Side:
    return Side.model_validate_json(path.read_bytes())


def _write(path: Path, side: Side) -> None:
    path.write_text(side.model_dump_json(), encoding="utf-8")


def _measured(family: str, ours: Side, theirs: Side) -> str:
    interrupted = "" if theirs.complete else " TRL's run was interrupted before this limit."
    return f"{family}: ours on {ours.measured}; TRL on {theirs.measured}.{interrupted}"


def _settings(races: Sequence[Race]) -> tuple[tuple[str, ...], ...]:
    """Rows of the settings, one column per race."""
    configs = [race.config for race in races]
    rows = {
        "seed": [str(config.seed) for config in configs],
        "target: held-out success": [f"{race.target:.0%}" for race in races],
        "evaluation episodes per held-out scenario": [str(config.evaluation.samples) for config in configs],
        "episodes per iteration": [
            f"{config.rollout.scenarios} scenarios × {config.rollout.group_size}" for config in configs
        ],
        "optimizer steps per iteration": [
            f"TRL {steps(config)}, ours at most {steps(config)}, because episodes without an advantage are left out"
            for config in configs
        ],
        "learning rate": [
            f"{config.training.learning_rate:g}, {config.training.warmup_steps} steps of warm-up, "
            f"{config.training.lr_scheduler_type} over {config.training.iterations} iterations"
            for config in configs
        ],
        "loss": [str(config.training.algorithm) for config in configs],
        "credit assignment": [f"TRL trajectory, ours {config.training.credit_assignment}" for config in configs],
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


def _theirs(of_family: Race, limit_s: float, path: Path) -> None:
    """TRL's side, in a fresh process."""

    def record(curve: list[CurvePoint], *, complete: bool = False) -> None:
        _write(path, Side(curve=tuple(curve), measured=here(), complete=complete))

    record(trl_curve(of_family, limit_s, record=record), complete=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.race_tasks")
    parser.add_argument("family", choices=sorted(COURSES))
    race(parser.parse_args().family)
