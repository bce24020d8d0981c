"""Results of commands as tables and lines in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from grpo.registry.model_card import source_text

if TYPE_CHECKING:
    from grpo.evaluation.schema import EvaluationDocument, Interval, PolicyEvaluation, ReportDocument
    from grpo.policy.weights.sources import ModelPlan
    from grpo.registry import ChampionChange, Lineage
    from grpo.registry.versions import VersionSummary
    from grpo.retraining.reports import RetrainingReport
    from grpo.retraining.triggers import TriggerResult
    from grpo.rewards.hacking.check import ProbeResult
    from grpo.tuning.study_summary import StudySummary
    from grpo_flows.dry_run import DryRun
    from grpo_flows.reproduce import Reproduction
    from grpo_local.checks import DoctorReport
    from grpo_local.nights import Night

_NIGHTS = {
    "Completed": "green",
    "Nothing to do": "green",
    "Running": "",
    "Scheduled": "dim",
    "Pending": "",
    "Late": "yellow",
}
_COLOURS = {
    **{"promote": "green", "refuse": "yellow", "failed": "red"},
    **{"ok": "green", "absent": "dim", "warning": "yellow", "problem": "red"},
}


def print_summary(console: Console, document: ReportDocument) -> None:
    """Print the stages with their times, the forward path and chat format of the model, the gates and the decision."""
    decision = document.decision
    stages = Table("stage", "runs", "cached", "compute s", "wall s", title="stages", title_justify="left")
    for stage in document.stages:
        stages.add_row(stage.name, str(stage.runs), str(stage.cached), f"{stage.compute_s:.2f}", f"{stage.wall_s:.2f}")
    console.print(stages)
    console.print(
        f"{document.wall_s:.1f} s in all. Orchestration overhead {document.orchestration_share:.1%}, the time outside "
        "of ingest, fine-tuning, rollout, score, train and evaluate"
    )
    console.print(f"forward path: {document.lineage.forward_path}")
    console.print(f"chat format: {document.lineage.chat_format or 'not recorded'}", soft_wrap=True)
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
    if document.explanation is not None and document.explanation.diagnoses:
        console.print(f"explanation: {document.explanation.summary} grpo explain {document.name}", soft_wrap=True)
    verdict = Text(f"decision: {decision.verdict}", f"bold {_COLOURS[decision.verdict]}")
    console.print(verdict, f"– {decision.reason}")


def print_study(console: Console, study: StudySummary) -> None:
    """Print each trial with its parameters, state and result."""
    names = list(dict.fromkeys(name for trial in study.trials for name in trial.params))
    table = Table("trial", "state", "result", *names, "evals", title=f"study {study.name}", title_justify="left")
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


def print_reward_check(console: Console, reward: str, results: Sequence[ProbeResult]) -> None:
    """Print the score of each probe, and the highest score that it may have."""
    table = Table(
        "probe", "score", "at most", "exploited", "description", title=f"reward {reward}", title_justify="left"
    )
    table.add_row("honest", f"{results[0].honest:.3f}", "", "", "a good reply, which the probes are compared with")
    for result in results:
        score = "none" if result.score is None else f"{result.score:.3f}"
        exploited = Text("yes", "red") if result.exploited else "no"
        allowed = f"{result.probe.max_share * result.honest:.3f}"
        table.add_row(result.probe.name, score, allowed, exploited, result.probe.description)
    console.print(table)


def print_evaluation(console: Console, document: EvaluationDocument) -> None:
    """Print success and reward of a model with their intervals."""
    evaluation = document.measurement
    table = Table("scenarios", "count", "success", "reward", title=document.model, title_justify="left")
    for slice_metrics in evaluation.slices:
        counts = [interval.count for interval in (slice_metrics.success, slice_metrics.reward) if interval is not None]
        table.add_row(
            slice_metrics.name, str(max(counts)), _interval(slice_metrics.success), _interval(slice_metrics.reward)
        )
    console.print(table)
    if evaluation.pass_at_k:
        console.print(_pass_table(evaluation))
    console.print(
        f"policy {evaluation.policy}: {evaluation.episodes} episodes, {evaluation.failed_share:.1%} failed, "
        f"{evaluation.truncated_share:.1%} truncated, {evaluation.turn_limit_share:.1%} at the limit of turns, "
        f"{evaluation.mean_completion_tokens:.1f} completion tokens each, {evaluation.calls.parsed} tool calls "
        f"({evaluation.calls.repaired} repaired), malformed calls in {evaluation.calls.malformed} replies. "
        f"The intervals have a confidence of {evaluation.confidence:.0%}",
        soft_wrap=True,
    )


def _pass_table(evaluation: PolicyEvaluation) -> Table:
    """Table of success in one or more of k attempts, and in each of k attempts."""
    table = Table(
        "k", "count", "pass@k", "pass^k", title="success in one and in each of k attempts", title_justify="left"
    )
    for k, (once, each) in enumerate(zip(evaluation.pass_at_k, evaluation.pass_hat_k, strict=True), start=1):
        table.add_row(str(k), str(once.count), _interval(once), _interval(each))
    return table


def _interval(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def print_checks(console: Console, report: DoctorReport) -> None:
    """Print each check with its state and remedy."""
    columns = [Column(name, overflow="fold") for name in ("", "check", "state", "detail", "remedy")]
    table = Table(*columns, title="doctor", title_justify="left")
    area = ""
    for check in report.checks:
        shown = "" if check.area == area else check.area
        table.add_row(shown, check.name, Text(check.state, _COLOURS[check.state]), check.detail, check.remedy)
        area = check.area
    console.print(table)
    problems = [check for check in report.checks if check.state == "problem"]
    console.print("a run would fail, because of:" if problems else "a run can start")
    for check in problems:
        console.print(f"  {check.name}: {check.detail}. {check.remedy}", markup=False, soft_wrap=True)


def print_dry_run(console: Console, plan: DryRun) -> None:
    """Print the stages of a run with their cache hits, and the estimates of episodes, tokens and memory."""
    stages = Table("stage", "runs", "cached", "the rest", title="stages", title_justify="left")
    for stage in plan.stages:
        stages.add_row(stage.name, str(stage.runs), str(stage.cached), stage.rest or "nothing to compute")
    console.print(stages)
    for line in _estimates(plan):
        console.print(line, soft_wrap=True)


def _estimates(plan: DryRun) -> Iterator[str]:
    unknown = "unknown until split has run"
    if plan.scenarios is not None:
        splits = "{} to train on, {} held out".format(*plan.scenarios)
    elif plan.counted is not None:
        splits = f"at least {plan.counted}, with a split that is {unknown}"
    else:
        splits = unknown
    yield f"scenarios: {splits}"
    heldout = unknown if plan.episodes.heldout is None else f"{plan.episodes.heldout:,}"
    yield f"episodes: at most {plan.episodes.train:,} for training, and for the evaluation of both policies {heldout}"
    time = "about {}"
    if plan.mean_completion_tokens is None:
        mean = "mean unknown: no rollout of this config is in the cache"
        time = "at most about {}, if every reply reaches its limit of tokens,"
    else:
        mean = f"{plan.mean_completion_tokens:.1f} on average in the cached rollouts of this config"
    yield (
        f"completion tokens: at most {plan.max_completion_tokens:,} in an episode, "
        f"{plan.max_completion_tokens * plan.episodes.all:,} in {plan.episodes.all:,} episodes, {mean}"
    )
    yield f"model: {model_line(plan.model)}"
    yield f"forward path: {plan.forward_path or 'unknown until load_base has run'}"
    yield f"chat format: {plan.chat_format}"
    yield f"context of the model: {plan.context}"
    if plan.reads:
        yield f"files and variables that your code reads, which are part of the cache key: {', '.join(plan.reads)}"
    yield (
        f"time: {time.format(_minutes(plan.seconds))} for what is not in the cache, at the present speed of this "
        "machine. The time in which judges and environments answer is not counted"
    )
    memory = plan.memory
    yield (
        f"memory: {_size(memory.peak)} at its peak, without Python and its packages: weights "
        f"{_size(memory.weights + memory.checked)} ({memory.models}), gradients "
        f"{_size(memory.gradients)}, optimizer {_size(memory.optimizer)}, activations about "
        f"{_known_size(memory.activations)}, or, during rollouts, a KV cache of at most {_known_size(memory.cache)}"
    )
    yield from (part.describe(_size) for part in (plan.process_memory, plan.servers) if part is not None)


def model_line(plan: ModelPlan) -> str:
    """Address, origin and size of a model, and the part of it that has to be fetched."""
    fetched = f", {_size(plan.missing)} of it to be fetched" if plan.missing else ""
    return f"{plan.address} ({plan.origin}), {_size(plan.size)}{fetched}"


def _minutes(seconds: float) -> str:
    """Duration in whole minutes, rounded up, or in hours: 42 → a minute, 61 → 2 minutes, 9000 → 2.5 hours."""
    if seconds <= 60:
        return "a minute"
    return f"{math.ceil(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _known_size(count: int | None) -> str:
    return "(unknown for this architecture)" if count is None else _size(count)


def _size(count: int) -> str:
    """Bytes in a binary unit: 10,103,040 → 9.6 MiB."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def print_runs(console: Console, documents: Sequence[ReportDocument]) -> None:
    """Print one row per run: name, date, decision, held-out means of champion and candidate, and time."""
    table = Table(title="runs", title_justify="left")
    table.add_column("run", no_wrap=True)
    for heading in ("finished", "decision", "held out", "time"):
        table.add_column(heading)
    for document in documents:
        evaluation, heldout = document.evaluation, ""
        if evaluation is not None:
            champion, candidate = evaluation.overall.champion, evaluation.overall.candidate
            heldout = f"{evaluation.metric} {champion.mean:.3f} → {candidate.mean:.3f}"
        finished = document.created[:16].replace("T", " ")
        table.add_row(document.name, finished, document.decision.verdict, heldout, f"{document.wall_s:,.0f} s")
    console.print(table)


def print_nights(console: Console, nights: Sequence[Night]) -> None:
    """Print one row per retraining: day, state, message, time and starts. Days without one are red, like failures."""
    table = Table(title="nights", title_justify="left")
    for heading in ("day", "run", "state", "message", "time", "starts"):
        table.add_column(heading, no_wrap=heading == "day")
    for night in nights:
        colour = _NIGHTS.get(night.state, "red")
        spent = f"{night.seconds:,.0f} s" if night.run else ""
        starts = str(night.starts or "")
        table.add_row(str(night.day), night.run, Text(night.state, colour), night.message, spent, starts)
    console.print(table)


def print_versions(console: Console, versions: Sequence[VersionSummary]) -> None:
    """Print address and aliases of each version, then held-out result, verdict, date and run, then its faults."""
    for version in versions:
        aliases = Text(", ".join(version.aliases), "green" if version.in_service else "")
        console.print(version.address, aliases, soft_wrap=True)
        facts = (
            "no held-out result" if version.heldout is None else str(version.heldout),
            f"verdict {version.verdict or 'unknown'}",
            f"registered {version.registered[:16].replace('T', ' ')}",
            f"run {version.run or 'unknown'}",
        )
        console.print(f"  {'; '.join(facts)}", soft_wrap=True)
        for problem in filter(None, (version.refusal, version.moved)):
            console.print(Text(f"  {problem}", "yellow"), soft_wrap=True)


def print_facts(console: Console, title: str, facts: Mapping[str, str]) -> None:
    """Print a title, and a line for each fact."""
    console.print(title, soft_wrap=True)
    for name, value in facts.items():
        console.print(f"  {name:<18}{value}", soft_wrap=True)


def print_change(console: Console, model: str, change: ChampionChange | None) -> None:
    """Print the version that is champion now."""
    if change is None:
        console.print(f"{model}: this version is champion already. Nothing was changed")
        return
    console.print(
        f"{model}: version {change.champion} is champion{_replaced(change)} ({change.reason})", soft_wrap=True
    )


def print_lineage(console: Console, lineage: Lineage) -> None:
    """Print the provenance, ancestors and promotion history of a version."""
    provenance = lineage.provenance
    compared = "the base model" if lineage.evaluated_against is None else f"version {lineage.evaluated_against}"
    scenarios = provenance.config["scenarios"]
    sources = scenarios["sources"] if isinstance(scenarios, dict) else None
    facts = {
        "policy": provenance.policies[-1],
        "aliases": ", ".join(lineage.aliases) or "none",
        "verdict": f"{lineage.tags.get('verdict')}: {provenance.decision}",
        "gates": ", ".join(f"{name} {'none' if v is None else f'{v:.4g}'}" for name, v in provenance.checks.items()),
        "compared with": f"{compared}, policy {provenance.champion}",
        "sources": "; ".join(map(source_text, _mappings(sources))),
        "sources digest": provenance.sources,
        "scenarios digest": provenance.scenarios,
        "base model digest": provenance.model,
        "code": f"{provenance.code}, commit {provenance.commit or 'unknown'}",
        "seed": str(provenance.seed),
        "packages": ", ".join(f"{name} {version}" for name, version in provenance.packages.items()),
        "machine": ", ".join(f"{name} {value}" for name, value in provenance.machine.items()),
        "iterations": str(len(provenance.policies) - 1),
        "MLflow run": lineage.run_id,
        **({"admitted": lineage.admitted} if lineage.admitted is not None else {}),
    }
    print_facts(console, f"{lineage.name} version {lineage.version}", facts)
    lines = [f"  external code     {name}: {digest[:16]}" for name, digest in provenance.external_digests.items()]
    for depth, parent in enumerate(lineage.parents):
        origin = f"version {parent.version}" if parent.version is not None else f"base model {parent.model}"
        origin += f": {parent.refusal}" if parent.refusal is not None else ""
        lines.append(f"{'  ' * depth}trained from policy {parent.policy}, {origin}")
    lines += [f"promotion record {number} is not signed, and is ignored" for number in lineage.unsigned]
    lines += [_change_line(change) for change in lineage.history] or ["no version of this model was promoted"]
    lines += [] if lineage.moved is None else [lineage.moved]
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print(
        f"the whole config: grpo lineage models:/{lineage.name}/{lineage.version} --json",
        soft_wrap=True,
    )


def _change_line(change: ChampionChange) -> str:
    """A promotion or rollback on one line."""
    actor = f"{change.by.user}@{change.by.host}" + (f", flow run {change.by.run}" if change.by.run else "")
    return f"{change.at} {change.action}: version {change.champion}{_replaced(change)}, by {actor}: {change.reason}"


def _replaced(change: ChampionChange) -> str:
    replaced = f" instead of {change.replaced}" if change.replaced is not None else ""
    return f"{replaced}{', forced' if change.forced else ''}"


def print_reproduction(console: Console, result: Reproduction) -> None:
    """Print the comparison of the weights, and the differences of the inputs."""
    for name, (then, now) in result.differences.items():
        console.print(f"{name}: was {then}, is {now}", soft_wrap=True)
    if result.equal:
        console.print(f"{result.model}: equal weights, policy {result.reproduced[-1]}", soft_wrap=True)
        return
    first = next(iter(result.differences), "none in what was recorded")
    console.print(
        f"{result.model}: different weights from {result.first_difference} on. Policy {result.expected[-1]} "
        f"was registered, this run gave {result.reproduced[-1]}. First difference: {first}",
        soft_wrap=True,
    )


def _mappings(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def print_triggers(console: Console, results: tuple[TriggerResult, ...]) -> None:
    """Print each trigger of a retraining, and if it fired."""
    table = Table("trigger", "fired", "explanation", title="triggers", title_justify="left")
    for result in results:
        table.add_row(result.reason, Text("yes", "green") if result.fired else "no", result.explanation)
    console.print(table)


def print_retraining(console: Console, report: RetrainingReport, *, path: Path) -> None:
    """Print the triggers, the curated conversations and the verdict of a retraining."""
    if report.triggers is not None:
        print_triggers(console, report.triggers.results)
        curation = report.triggers.curation
        console.print(f"{curation.records} conversations: {curation.accepted} accepted")
        for reason, count in curation.rejected.items():
            console.print(f"  {count} × {reason}")
        for kind, count in curation.redacted.items():
            console.print(f"  {count} × {kind} redacted")
    console.print(f"{report.verdict}: {report.reason}", soft_wrap=True)
    console.print(f"report: {path}", soft_wrap=True)
