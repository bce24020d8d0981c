"""A real model: triage with three seeds and two controls, the order desk after fine-tuning, and BANKING77."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from flows.local import settings
from grpo.config.pipeline import load_config
from grpo.errors import DataError
from grpo.evaluation.report import read_report
from grpo.evaluation.schema import Interval, ReportDocument, SliceMetrics
from grpo.rewards.learned.metrics import wilson_interval
from tests.benchmarks.page import Findings, Table
from tests.places import ROOT

CONFIGS = ROOT / "data" / "configs"
SEEDS = (1, 2, 3)
CONTROLS = {
    "constant reward": ("reward=[{kind: constant, weight: 1.0}]",),
    "negated reward, 6 iterations": (
        "reward=[{kind: task_completion, weight: -0.7}, {kind: checks, weight: -0.3}]",
        "training.iterations=6",
    ),
}
HEAD = ("run", "base", "after fine-tuning", "after GRPO", "verdict", "time", "peak memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished run: its report, where it wrote one, its time, and the peak memory of the largest process
    until then."""

    document: ReportDocument | None
    wall_s: float
    peak_mib: float


def measure() -> Findings:
    """All runs, or the reason for their absence."""
    model = ROOT / load_config(CONFIGS / "triage.yaml").policy.model
    if not model.exists():
        return Findings(title="A real model", text=f"Not measured: {model.name} is not here; `make real` fetches it.")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        rows = [_row(f"triage, seed {seed}", _train(home, "triage", f"seed={seed}")) for seed in SEEDS]
        rows += [_row(f"triage, {name}", _train(home, "triage", *changes)) for name, changes in CONTROLS.items()]
        rows.append(_row("order desk", _train(home, "smollm2_desk")))
        for name in ("banking77_teams", "banking77"):
            source = ROOT / load_config(CONFIGS / f"{name}.yaml").scenarios.sources[0].path  # type: ignore[union-attr]
            rows.append(_row(name, _train(home, name)) if source.exists() else _absent(name, f"no data at {source}"))
    return Findings(
        title="A real model",
        text=(
            "SmolLM2-135M-Instruct in float32, all weights trained. Success on held-out scenarios with its Wilson "
            "interval at 95 %, one episode a scenario: of the base, after fine-tuning on demonstrations, and after "
            "GRPO. The time is that of the whole command, conversion of the model and evaluations included; the "
            "download is not. A constant reward ends the run without a learning signal; a negated one must not help."
        ),
        tables=(Table(head=HEAD, rows=tuple(rows)),),
    )


def _train(home: Path, name: str, *overrides: str) -> Outcome:
    """One run of the command with records of its own."""
    label = f"{name}-{len(list(home.glob('run-*')))}"
    records = home / f"run-{label}"
    records.mkdir()
    environment = {**os.environ, **settings.offline_variables(), **settings.home_variables(records)}
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "flows.cli", "train", str(CONFIGS / f"{name}.yaml"), "--set", f"name={label}"]
    for override in overrides:
        command += ["--set", override]
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False)
    wall_s = time.perf_counter() - began
    try:
        document = read_report(records / label / "report.json")
    except DataError:
        document = None
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Outcome(document=document, wall_s=wall_s, peak_mib=peak_mib)


def _row(name: str, outcome: Outcome) -> tuple[str, ...]:
    document = outcome.document
    cost = (f"{outcome.wall_s / 60:.1f} min", f"{outcome.peak_mib:,.0f} MiB")
    if document is None:
        return (name, "–", "–", "–", "no report", *cost)
    tuning, verdict = document.fine_tuning, document.decision.verdict
    if tuning is None:
        return (name, "–", "–", "–", f"{verdict}: {document.decision.reason}", *cost)
    return (name, *map(_success, (tuning.base, tuning.fine_tuned, tuning.candidate)), verdict, *cost)


def _success(part: SliceMetrics) -> str:
    """Share of successes with its Wilson interval, from one episode a scenario."""
    success: Interval | None = part.success
    if success is None:
        return "not verified"
    low, high = wilson_interval(success.mean * success.count, success.count)
    return f"{success.mean:.1%} [{low:.1%}, {high:.1%}]"


def _absent(name: str, reason: str) -> tuple[str, ...]:
    return (name, "–", "–", "–", f"not measured: {reason}", "–", "–")
