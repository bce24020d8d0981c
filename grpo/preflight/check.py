"""Run the table of checks on a config, collect every fault, and choose the metric of gates that name none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo.config.gates import Metric, with_metric
from grpo.config.pipeline import PipelineConfig
from grpo.policy.weights.registered import REGISTERED
from grpo.preflight.checks import CHECKS
from grpo.preflight.facts import Facts
from grpo.preflight.faults import EXPECTED, Fault, raise_faults
from grpo.preflight.outcomes import gate_metric
from grpo.preflight.passed import has_passed, identity_of, recently_passed
from grpo.preflight.table import SERVERS, Check, Depth, Purpose
from grpo.reads.recording import recorded_reads
from grpo.registry import Registry
from grpo.scenarios.sources import SOURCES

__all__ = ["Check", "Purpose", "check", "find_faults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Faults of a config, and the config as a run uses it."""

    faults: tuple[Fault, ...]
    config: PipelineConfig | None
    """Config with models pinned and the metric of the gates chosen. None if there are faults."""


def check(
    config: PipelineConfig,
    *,
    purpose: Purpose = "train",
    depth: Depth = "all",
    whole: bool = False,
    registry: Callable[[], Registry | None] = lambda: None,
    before: Sequence[Check] = (),
) -> PipelineConfig:
    """Raise one error with all faults, or return the config as the run uses it: models pinned, metric of gates chosen.

    It takes seconds, loads no weights and leaves no files behind. With `depth="files"` only the checks that need
    neither torch nor MLflow are made. A command makes the others later, while its server starts, or in its flow.

    Args:
        config: Config of the run.
        purpose: `train` for a training with gates and registration, `trial` for one without them, or `evaluate`.
        depth: `files` leaves out the checks that import torch or MLflow.
        whole: True if every scenario is held out.
        registry: Opens the registry, or returns None if there is none yet.
        before: Checks of the caller that are made first, e.g. checks of servers.

    """
    checked = find_faults(config, purpose=purpose, depth=depth, whole=whole, registry=registry, before=before)
    if checked.faults:
        raise_faults(checked.faults)
    assert checked.config is not None
    return checked.config


def find_faults(
    config: PipelineConfig,
    *,
    purpose: Purpose = "train",
    depth: Depth = "all",
    whole: bool = False,
    registry: Callable[[], Registry | None] = lambda: None,
    before: Sequence[Check] = (),
) -> Checked:
    """Make all checks, see `check`. If several of them meet the same fault, it is named once.

    Checks of the table that this config has passed in this process within `RECENT_S` are not made again, because a
    command makes them while its server starts, and its flow would make them again. The caller's own checks are always
    made.
    """
    passed = recently_passed(identity := identity_of(config, purpose=purpose, whole=whole))
    faults: list[Fault] = []
    messages: set[str] = set()
    with recorded_reads() as reads, Facts(config, whole=whole, registry=registry) as facts:

        def add(name: str, error: Exception) -> None:
            if str(error) not in messages:
                messages.add(str(error))
                faults.append(Fault(check=name, error=error))

        for entry in (*before, *CHECKS):
            failed = {fault.check for fault in faults}
            if SERVERS in failed and entry in CHECKS and config.policy.model.startswith(REGISTERED):
                break  # MLflow's client would ask the server for minutes
            if purpose not in entry.purposes or (depth == "files" and entry.imports) or entry.needs in failed:
                continue
            if entry in CHECKS and ("all" in passed or ("files" in passed and not entry.imports)):
                continue
            try:
                for error in entry.test(facts):
                    add(entry.name, error)
            except EXPECTED as error:
                add(entry.name, error)
        reads.remember()  # a stage in this process does not see what the user's functions have read only here
        if faults:
            return Checked(faults=tuple(faults), config=None)
        metric = None
        if purpose == "train":
            metric = next(iter(passed.values())) if passed and _in_files(config) else gate_metric(facts)
        has_passed(identity, depth, metric)
        return Checked(faults=(), config=_as_run(facts, purpose=purpose, metric=metric))


def _in_files(config: PipelineConfig) -> bool:
    """True if all scenarios are in files, whose digests are in the identity. A function may yield others by now."""
    return all(any(SOURCES[type(source)].files(source)) for source in config.scenarios.sources)


def _as_run(facts: Facts, *, purpose: Purpose, metric: Metric | None) -> PipelineConfig:
    """The config as a run uses it: models pinned, and for a training the metric of gates that name none, if known.

    For an evaluation the config is returned as given.
    """
    if purpose == "evaluate":
        return facts.given
    config = facts.config()  # not remembered, because an alias may have been moved since
    return config if metric is None else config.model_copy(update={"gates": with_metric(config.gates, metric)})
