"""Tune hyperparameters: trials of a run in parallel processes, and the best values as a config."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import optuna
import yaml
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.task_runners import ProcessPoolTaskRunner
from pydantic import BaseModel, ConfigDict

from grpo import progress
from grpo.config.search_space import Value
from grpo.config.tuning import TuneConfig
from grpo.identity.cache_identity import RunInputs, short_digest
from grpo.identity.code import code_digest
from grpo.storage.home import home
from grpo.storage.locks import file_lock
from grpo.tuning.document import BEST, StudyDocument, best_yaml
from grpo.tuning.storage import open_storage, repeat_until_answered
from grpo.tuning.study import open_study
from grpo.tuning.study import search as search_study
from grpo.tuning.study_summary import StudySummary, summarize_study
from grpo.tuning.tracking import StudyTracker
from grpo_flows.pipeline import base_policy, prepare_scenarios, starting_policies
from grpo_local import preflight
from grpo_tasks.execution.executor import stage_executor
from grpo_tasks.execution.task_runners import one_thread
from grpo_tasks.split import SplitResult
from grpo_tasks.study_report import report_study, study_record
from grpo_tasks.validation_split import validation_split
from grpo_tasks.write_served import with_written_data

_NOT_IDENTITY = {"name", "n_trials", "parallel", "storage", "heartbeat_s"}
"""Settings for the number of trials and the place where they run. They do not change a trial."""
_POLL_S = 1.0


class Tuned(BaseModel):
    """Result of a study."""

    model_config = ConfigDict(frozen=True)

    best_params: dict[str, Value]
    best_reward: float
    config: Path
    """The best settings, as a config that `grpo train` takes."""
    report: Path


@flow(name="tune", flow_run_name="{config.name}", task_runner=one_thread())
def tune(config: TuneConfig) -> Tuned:
    """Run trials until the study has `n_trials`, and write the best settings down.

    The same config resumes its study, and finished trials stay as they are.

    Args:
        config: The search space, the run that is tuned, and the number of trials.

    """
    config = preflight.check_tuning(config)
    base = config.base
    with stage_executor(base.rollout):
        start, split = shared_stages(config)
    settings = config.model_dump(mode="json", exclude={*_NOT_IDENTITY, "base"})
    identity = short_digest([settings, start, RunInputs.of(base).key(base)])
    name, lock = f"{config.name}-{identity}", home() / "tuning.lock"
    url = config.storage or f"sqlite:///{home() / 'tuning.db'}"
    with file_lock(lock):
        storage = open_storage(url, heartbeat_s=config.heartbeat_s)
        study = open_study(config, config.space, base, name=name, storage=storage)
    tracker = study_record(config, name)
    try:
        _run_trials(config, study, tracker, url=url, start=start, lock=lock)
    finally:  # also of a study that was interrupted
        summary = summarize_study(study, importance=True)
        document = StudyDocument(
            name=config.name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            metric=config.metric,
            study=summary,
            start=start,
            trained=split.train,
            validation=split.heldout,
            code_digest=code_digest(),
            best_config=None if summary.best_trial is None else best_yaml(config, summary, home() / config.name),
            config=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False),
        )
        page = report_study(document, tracker, home() / config.name)
    return Tuned(
        best_params=summary.best_params, best_reward=summary.best_reward, config=page.with_name(BEST), report=page
    )


def shared_stages(config: TuneConfig) -> tuple[str, SplitResult]:
    """Run the stages that all trials take from the cache.

    Returns the hash of their first policy, and the split into training and validation scenarios.
    """
    base = with_written_data(config.base)
    data = prepare_scenarios(base.scenarios, store=base.store, environment=base.environment)
    split = validation_split(
        scenarios=data.artifact, split=data.split.split, share=config.validation_fraction, store=base.store
    )
    return starting_policies(base, base_policy(base.policy, base.store))[-1].policy, split


def _run_trials(
    config: TuneConfig, study: optuna.Study, tracker: StudyTracker, *, url: str, start: str, lock: Path
) -> None:
    """Run trials in worker processes until the study has enough, and report each that ends."""
    progress.report("trials", 0, config.n_trials)
    if _track(config, study, tracker).ended >= config.n_trials:
        return
    with _trial_workers(config, study.study_name, url, start, lock) as futures:
        while not all(future.state.is_final() for future in futures):
            repeat_until_answered(partial(_track, config, study, tracker))
            time.sleep(_POLL_S)
    if _track(config, study, tracker).ended < config.n_trials:
        for future in futures:
            future.result()  # raises the first failure


def _track(config: TuneConfig, study: optuna.Study, tracker: StudyTracker) -> StudySummary:
    """Record the trials that have ended since."""
    summary = summarize_study(study, importance=False)
    ended = [trial for trial in summary.trials if tracker.add(trial)]
    for trial in ended:
        shown = {"reward": trial.intermediate_evals[-1]} if trial.intermediate_evals else {}
        progress.report(f"trial {trial.number} {trial.state}", 1, 1, **shown)
    if ended:
        best = {} if summary.best_trial is None else {"best": summary.best_trial.reward or 0.0}
        progress.report("trials", min(summary.ended, config.n_trials), config.n_trials, **best)
    return summary


@task(name="search", cache_policy=NO_CACHE, persist_result=False)
def search(plan: TuneConfig, study: str, url: str, start: str, lock: Path) -> None:
    """Run trials of a study one after the other, until it has enough."""
    from grpo_flows.trial import trial  # a task's own code travels to its process, its module's imports do not

    if plan.parallel > 1:
        import torch

        torch.set_num_threads(max(1, (os.cpu_count() or 1) // plan.parallel))
    storage = open_storage(url, heartbeat_s=plan.heartbeat_s)
    with file_lock(lock):
        opened = open_study(plan, plan.space, plan.base, name=study, storage=storage)
    search_study(
        opened,
        plan,
        plan.space,
        lambda number, values: trial(plan, number, values, start),
        storage=storage,
        turn=file_lock(lock),
    )


@contextmanager
def _trial_workers(
    plan: TuneConfig, study: str, url: str, start: str, lock: Path
) -> Iterator[list[PrefectFuture[None]]]:
    """Search in `parallel` processes while the block runs, each in its own pool, so that others go on if one dies.

    If an exception leaves the block, or this process dies, they end at once. Their trials are run again when the study
    is resumed.
    """
    inputs = {"plan": plan, "study": study, "url": url, "start": start, "lock": lock}
    life, ours = multiprocessing.Pipe(duplex=False)
    with life, ours, ExitStack() as stack:
        pools = [
            ProcessPoolTaskRunner(max_workers=1, initializer=_end_with_parent, initargs=(life,))
            for _ in range(plan.parallel)
        ]
        try:
            yield [stack.enter_context(pool).submit(search, inputs) for pool in pools]
        except BaseException:
            ours.close()
            raise


def _end_with_parent(life: Connection) -> None:
    """End this process when the other end of the pipe is closed, because its holder closed it or died."""

    def watch() -> None:
        life.poll(None)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
