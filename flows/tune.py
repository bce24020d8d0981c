"""Search for settings: trials of a run, side by side, and the best of them as a config."""

from __future__ import annotations

import hashlib
import json
import time
from datetime import UTC, datetime
from pathlib import Path

import optuna
import yaml
from prefect import flow
from prefect.futures import PrefectFuture
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import BaseModel, ConfigDict

from flows.ledger import Ledger
from flows.local import settings
from flows.run import Run
from flows.runner import shard_runner
from flows.searchers import searchers
from grpo import progress
from grpo.config.search_space import Value
from grpo.config.tuning import TuneConfig
from grpo.identity.code import code_digest
from grpo.storage.home import home
from grpo.storage.locks import file_lock
from grpo.tuning.document import BEST, StudyDocument, best_yaml
from grpo.tuning.storage import open_storage
from grpo.tuning.study import open_study
from grpo.tuning.study_summary import StudySummary, summarize_study
from tasks.hold_back import validation_split
from tasks.study import report_study, study_record

_ELSEWHERE = {"name", "n_trials", "parallel", "storage", "heartbeat_s"}
"""Settings that say how much is tried and where, not what a trial is."""
_POLL_S = 1.0


class Tuned(BaseModel):
    """How a search ended."""

    model_config = ConfigDict(frozen=True)

    best_params: dict[str, Value]
    best_reward: float
    config: Path
    """The best settings, as a config that `grpo train` takes."""
    report: Path


@flow(name="tune", flow_run_name="{config.name}", task_runner=ThreadPoolTaskRunner(max_workers=1))
def tune(config: TuneConfig) -> Tuned:
    """Try settings of a run until the study has as many trials as are wanted, and write down the best.

    The same config goes on with its study wherever it was left: trials that came to an end stay as they are.

    Args:
        config: What is tried, of which run, and how often.

    """
    study = _Search(config)
    study.prepare()
    try:
        study.run()
    finally:
        page = study.report()
    found = study.summary()
    return Tuned(best_params=found.best_params, best_reward=found.best_reward, config=page.with_name(BEST), report=page)


class _Search:
    """A study while it is going on."""

    def __init__(self, plan: TuneConfig) -> None:
        self.plan = plan
        self.url = plan.storage or f"sqlite:///{home() / 'tuning.db'}"
        self.lock = home() / "tuning.lock"

    def prepare(self) -> None:
        """Do what all trials have in common, so that each of them finds it in the cache; then open the study."""
        plan = self.plan
        with shard_runner(plan.base.rollout) as runner:
            run = Run(plan.base, Ledger(runner), started_at=settings.started_at())
            run.gather()
            self.sides = run.ledger.run(
                validation_split,
                scenarios=run.data.scenarios,
                split=run.sides.split,
                share=plan.validation_fraction,
                store=plan.base.store,
            )
        self.start = run.base.policy
        settings_of_study = plan.model_dump(mode="json", exclude={*_ELSEWHERE, "base"}) | {
            "base": plan.base.identity_settings()
        }
        identity = json.dumps(
            [settings_of_study, run.content, self.start, code_digest(), run.external_digests], sort_keys=True
        )
        self.name = f"{plan.name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
        with file_lock(self.lock):
            storage = open_storage(self.url, heartbeat_s=plan.heartbeat_s)
            self.study: optuna.Study = open_study(plan, plan.space, plan.base, name=self.name, storage=storage)
        self.record = study_record(plan, self.name)

    def run(self) -> None:
        """Let the searchers work, and tell how far they are."""
        progress.report("trials", 0, self.plan.n_trials)
        if self.watch() >= self.plan.n_trials:
            return
        with searchers(self.plan, self.name, self.url, self.start, self.lock) as futures:
            while not all(future.state.is_final() for future in futures):
                self.watch()
                time.sleep(_POLL_S)
        if self.watch() < self.plan.n_trials:
            _first_failure(futures)

    def watch(self) -> int:
        """Write down the trials that have come to an end since; how many there are in all."""
        found = self.summary(importance=False)
        ended = [trial for trial in found.trials if self.record.add(trial)]
        for trial in ended:
            shown = {"reward": trial.intermediate_evals[-1]} if trial.intermediate_evals else {}
            progress.report(f"trial {trial.number} {trial.state}", 1, 1, **shown)
        if ended:
            best = {} if found.best_trial is None else {"best": found.best_trial.reward or 0.0}
            progress.report("trials", min(found.ended, self.plan.n_trials), self.plan.n_trials, **best)
        return found.ended

    def summary(self, *, importance: bool = True) -> StudySummary:
        """What the study has shown so far."""
        return summarize_study(self.study, importance=importance)

    def report(self) -> Path:
        """Write the report, also of a study that was interrupted."""
        found = self.summary()
        document = StudyDocument(
            name=self.plan.name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            metric=self.plan.metric,
            study=found,
            start=self.start,
            trained=self.sides.train,
            validation=self.sides.heldout,
            code_digest=code_digest(),
            best_config=None if found.best_trial is None else best_yaml(self.plan, found),
            config=yaml.safe_dump(self.plan.model_dump(mode="json"), sort_keys=False),
        )
        return report_study(document, self.record, home() / self.plan.name)


def _first_failure(futures: list[PrefectFuture[None]]) -> None:
    """Raise what ended the searchers before they were done."""
    for future in futures:
        future.result()
