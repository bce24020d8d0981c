"""Storage of studies, which several processes share, with heartbeats that detect crashed trials."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages import fail_stale_trials as _fail_stale
from optuna.trial import FrozenTrial, Trial, TrialState

from grpo.errors import ConfigError, StorageError, install_command
from grpo.storage.error_lines import one_line
from grpo.storage.schemas import refuse_empty

logger = logging.getLogger(__name__)

RETRIES = 3
"""Retries of a trial if its process crashes."""
_CREATED_WITHIN_S = 5.0
_MISSED_HEARTBEATS = 6  # with fewer, a machine that swaps would count as crashed


def open_storage(url: str, *, heartbeat_s: int) -> RDBStorage:
    """Open a database for studies, and create its tables if needed.

    Raises `ConfigError` when the database's driver is not installed or its file has 0 bytes, and `StorageError` when it
    does not answer.
    """
    from sqlalchemy.exc import SQLAlchemyError

    sqlite = url.startswith("sqlite")
    if sqlite:
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        _wait_for_tables(url)
    options = {"connect_args": {"timeout": 60}} if sqlite else {"pool_pre_ping": True}
    with _experimental():
        try:
            return RDBStorage(
                url,
                engine_kwargs=options,
                heartbeat_interval=heartbeat_s,
                grace_period=_MISSED_HEARTBEATS * heartbeat_s,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
            )
        except ImportError as error:
            raise ConfigError(
                f"storage {url}: {error}. If it is PostgreSQL, call {install_command('postgres')}"
            ) from error
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise StorageError(f"the study's storage {url} cannot be used: {str(cause).strip()}") from error


def _wait_for_tables(url: str) -> None:
    """Wait while the file has 0 bytes, because another process may be creating it. Then refuse it."""
    file, deadline = Path(url.removeprefix("sqlite:///")), time.monotonic() + _CREATED_WITHIN_S
    while file.is_file() and not file.stat().st_size and time.monotonic() < deadline:
        time.sleep(0.1)
    refuse_empty(f"the study's storage {url}", url)


def fail_stale_trials(study: optuna.Study) -> None:
    """Mark trials without a heartbeat as failed, and enqueue them again."""
    with _experimental():
        _fail_stale(study)


def record_first_heartbeats(storage: BaseStorage, trials: Iterable[FrozenTrial], known: set[int]) -> None:
    """Record a first heartbeat for running trials that are new to this process.

    Otherwise a trial that crashed before its first heartbeat would never become stale. For a live trial this changes
    nothing. `known` has the numbers of earlier trials.
    """
    if isinstance(storage, RDBStorage):
        for trial in trials:
            if trial.state == TrialState.RUNNING and trial.number not in known:
                storage.record_heartbeat(trial._trial_id)
                known.add(trial.number)


def begin_trial(study: optuna.Study, distributions: Mapping[str, BaseDistribution]) -> Trial:
    """Draw the values of a trial, or take the values of a waiting trial."""
    with _experimental():
        return study.ask(fixed_distributions=dict(distributions))


@contextmanager
def heartbeat(storage: BaseStorage, trial_id: int) -> Iterator[None]:
    """Record heartbeats of a trial while the block runs, in a storage that supports them.

    A heartbeat that the storage does not take, for example while its database restarts, is logged. The next one follows
    after the usual interval, and a trial is stale only after several missed ones.
    """
    if not isinstance(storage, RDBStorage):
        yield
        return
    interval, done = storage.get_heartbeat_interval(), threading.Event()

    def beat() -> None:
        while True:
            try:
                storage.record_heartbeat(trial_id)
            except Exception as error:
                logger.warning("no heartbeat of trial %d was recorded: %s", trial_id, one_line(error))
            if done.wait(interval):
                return

    thread = threading.Thread(target=beat, name=f"heartbeat-{trial_id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def _experimental() -> Iterator[None]:
    """Ignore the warnings that heartbeats are experimental, and that they are outside of `Study.optimize`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed")
        yield
