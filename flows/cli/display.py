"""What a run looks like in a terminal: a bar a stage while it works, tables when it is done."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from grpo import progress
from grpo.evaluation.schema import EvaluationDocument, Interval, PolicyEvaluation, ReportDocument
from grpo.rewards.hacking.check import ProbeResult
from grpo.tuning.study_summary import StudySummary

if TYPE_CHECKING:
    from flows.dry_run import DryRun
    from flows.local.checks import DoctorReport

_RUNS = ("prefect.flow_runs", "prefect.task_runs")
_EVENTS = "prefect.events.clients"
_ENDS = ("Finished in state", "Encountered exception during", "Task run failed with", "Crash detected")
_COLOURS = {
    **{"promote": "green", "refuse": "yellow", "failed": "red"},
    **{"ok": "green", "absent": "dim", "warning": "yellow", "problem": "red"},
}


class _OnceFilter(logging.Filter):
    """Drops the end of a task and of its flow, which the command prints itself; the server has the whole.

    Of the warnings about events that a server which went away did not take, the first is shown.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lost_events = False

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        if record.name == _EVENTS:
            first, self._lost_events = not self._lost_events, True
            return first
        return not (record.name.startswith(_RUNS) and record.getMessage().startswith(_ENDS))


def _dropped(record: logging.LogRecord) -> bool:
    return False


def _say_failures_once() -> None:
    """Let the terminal show a failure once, at the end of the command."""
    if logging.getLogger("flows").level == logging.DEBUG:
        return
    logging.raiseExceptions = False  # a log that cannot be sent writes its own traceback
    logging.getLogger("prefect._internal.concurrency").addFilter(_dropped)  # and so does each event
    for handler in (*logging.getLogger().handlers, *logging.getLogger("prefect").handlers):
        shown = type(handler).__name__ == "PrefectConsoleHandler"
        if shown and not any(isinstance(one, _OnceFilter) for one in handler.filters):
            handler.addFilter(_OnceFilter())


@contextmanager
def live(console: Console, *, iterations: int = 0) -> Iterator[None]:
    """Show progress bars while the block runs, one of them for the iterations if there are any.

    Where there is no terminal, a plain line a stage.
    """
    _say_failures_once()
    if not console.is_terminal:
        with progress.observed(lambda *event: _tell(console, *event)):
            yield
        return
    bars = Progress(
        SpinnerColumn(),
        TextColumn("{task.description:<12}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[numbers]}", style="dim", markup=False),
        console=console,
    )
    known: dict[str, TaskID] = {}
    guard = threading.Lock()
    updates = 0

    def watch(stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
        nonlocal updates
        with guard:
            if stage == "train" and "cached" in numbers:
                updates += 1
                bars.update(overall, completed=updates)
            if stage not in known:
                known[stage] = bars.add_task(stage, total=total, numbers="")
            text = " ".join(f"{name} {value:.3g}" for name, value in numbers.items())
            bars.update(known[stage], completed=done, total=total, numbers=text)

    overall = bars.add_task("iterations", total=iterations, numbers="", visible=iterations > 0)
    with bars, progress.observed(watch):
        yield


def _tell(console: Console, stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
    if done in (0, total):
        text = " ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        console.print(f"{stage} {done}/{total} {text}".rstrip(), soft_wrap=True)


def print_summary(console: Console, document: ReportDocument) -> None:
    """The decision, the gates and where the time went."""
    decision = document.decision
    stages = Table("stage", "runs", "cached", "compute s", "wall s", title="stages", title_justify="left")
    for stage in document.stages:
        stages.add_row(stage.name, str(stage.runs), str(stage.cached), f"{stage.compute_s:.2f}", f"{stage.wall_s:.2f}")
    console.print(stages)
    console.print(
        f"{document.wall_s:.1f} s in all; {document.orchestration_share:.1%} of it is neither ingest, rollout, score, "
        "train nor evaluate"
    )
    if decision.checks:
        gates = Table("gate", "value", "must be", "passed", title="gates", title_justify="left")
        for check in decision.checks:
            value = "none" if check.value is None else f"{check.value:.4g}"
            gates.add_row(check.name, value, f"{check.relation} {check.bound:g}", "yes" if check.passed else "no")
        console.print(gates)
    if document.evaluation is not None:
        overall = document.evaluation.overall
        for name, side in (("champion", overall.champion), ("candidate", overall.candidate)):
            console.print(
                f"held-out {document.evaluation.metric} {name:<9} {side.mean:.3f} [{side.low:.3f}, {side.high:.3f}]"
            )
    verdict = Text(f"decision: {decision.verdict}", f"bold {_COLOURS[decision.verdict]}")
    console.print(verdict, f"– {decision.reason}")


def print_study(console: Console, study: StudySummary) -> None:
    """Each trial with its values, its state and what it showed."""
    names = list(dict.fromkeys(name for trial in study.trials for name in trial.params))
    table = Table("trial", "state", "result", *names, "looks", title=f"study {study.name}", title_justify="left")
    for trial in study.trials:
        result = "" if trial.reward is None else f"{trial.reward:.4f}"
        values = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in trial.params.values()]
        table.add_row(str(trial.number), trial.state, result, *values, str(len(trial.intermediate_evals)))
    console.print(table)
    for trial in study.trials:
        if trial.reason:
            console.print(f"trial {trial.number}: {trial.reason}", soft_wrap=True)
    best = study.best
    console.print(Text.assemble((f"best: trial {best.number}", "bold green"), f", {best.reward:.4f}"))


def print_reward_check(console: Console, reward: str, findings: Sequence[ProbeResult]) -> None:
    """What a reward gives each probe, beside what it gives the honest reply."""
    table = Table("probe", "score", "at most", "fooled", "what it is", title=f"reward {reward}", title_justify="left")
    table.add_row("honest", f"{findings[0].honest:.3f}", "", "", "a good reply: the probes are held against it")
    for one in findings:
        score = "none" if one.score is None else f"{one.score:.3f}"
        exploited = Text("yes", "red") if one.exploited else "no"
        table.add_row(
            one.probe.name, score, f"{one.probe.max_share * one.honest:.3f}", exploited, one.probe.description
        )
    console.print(table)


def print_measurement(console: Console, document: EvaluationDocument) -> None:
    """How good a model is, with intervals."""
    found = document.measurement
    table = Table("scenarios", "count", "success", "reward", title=document.model, title_justify="left")
    for slice_metrics in found.slices:
        counts = [interval.count for interval in (slice_metrics.success, slice_metrics.reward) if interval is not None]
        table.add_row(
            slice_metrics.name, str(max(counts)), _interval(slice_metrics.success), _interval(slice_metrics.reward)
        )
    console.print(table)
    if found.pass_at_k:
        console.print(_pass_table(found))
    console.print(
        f"policy {found.policy}: {found.episodes} episodes, {found.failed_share:.1%} failed, "
        f"{found.truncated_share:.1%} cut off, {found.mean_completion_tokens:.1f} tokens said in each; intervals of "
        f"{found.confidence:.0%}",
        soft_wrap=True,
    )


def _pass_table(measurement: PolicyEvaluation) -> Table:
    """Success in at least one, and in each, of k tries."""
    table = Table("k", "count", "pass@k", "pass^k", title="success in one and in each of k tries", title_justify="left")
    for k, (once, each) in enumerate(zip(measurement.pass_at_k, measurement.pass_hat_k, strict=True), start=1):
        table.add_row(str(k), str(once.count), _interval(once), _interval(each))
    return table


def _interval(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def print_diagnosis(console: Console, diagnosis: DoctorReport) -> None:
    """What is here, what is missing, and what to do about it."""
    table = Table("", "what", "state", "found", "remedy", title="doctor", title_justify="left")
    area = ""
    for finding in diagnosis.findings:
        shown = "" if finding.area == area else finding.area
        state = Text(finding.state, _COLOURS[finding.state])
        table.add_row(shown, finding.name, state, finding.found, finding.remedy)
        area = finding.area
    console.print(table)
    problems = sum(finding.state == "problem" for finding in diagnosis.findings)
    console.print("a run can start" if not problems else f"{problems} problem(s): a run would fail")


def print_dry_run(console: Console, plan: DryRun) -> None:
    """Stages of a run, cached and to be computed, and the episodes, tokens and memory that it takes."""
    stages = Table("stage", "runs", "cached", "the rest", title="stages", title_justify="left")
    for stage in plan.stages:
        stages.add_row(stage.name, str(stage.runs), str(stage.cached), stage.rest or "nothing to compute")
    console.print(stages)
    for line in _estimates(plan):
        console.print(line, soft_wrap=True)


def _estimates(plan: DryRun) -> Iterator[str]:
    unknown = "unknown until split has run"
    splits = unknown if plan.scenarios is None else "{} to train on, {} held out".format(*plan.scenarios)
    yield f"scenarios: {splits}"
    heldout = unknown if plan.episodes.heldout is None else f"{plan.episodes.heldout:,}"
    yield f"episodes: at most {plan.episodes.train:,} to train on; held out, by both policies: {heldout}"
    if plan.mean_completion_tokens is None:
        mean = "mean unknown: no rollout of this config is in the cache"
    else:
        mean = f"{plan.mean_completion_tokens:.1f} on average in the cached rollouts of this config"
    yield (
        f"completion tokens: at most {plan.max_completion_tokens:,} in an episode, "
        f"{plan.max_completion_tokens * plan.episodes.all:,} in {plan.episodes.all:,} episodes; {mean}"
    )
    memory = plan.memory
    yield (
        f"memory: {_size(memory.peak)} at its peak, without Python and its packages: weights "
        f"{_size(memory.weights)} ({memory.copies} × {memory.parameters:,} parameters), gradients "
        f"{_size(memory.gradients)}, optimizer {_size(memory.optimizer)}, activations about "
        f"{_size(memory.activations)}; or, during rollouts, a KV cache of at most {_size(memory.cache)}"
    )


def _size(count: int) -> str:
    """Bytes in the unit that people read: 10,103,040 → 9.6 MiB."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
