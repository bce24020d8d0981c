"""Storage of studies, which several processes share, with heartbeats that detect crashed trials."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages import fail_stale_trials as _fail_stale
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.trial import FrozenTrial, Trial, TrialState

from grpo.errors import ConfigError, StorageError, install_command
from grpo.storage.error_lines import one_line
from grpo.storage.schemas import refuse_empty

logger = logging.getLogger(__name__)

RETRIES = 3
"""Retries of a trial if its process crashes."""
_CREATED_WITHIN_S = 5.0
_OUTAGE_PAUSE_S = 2.0
"""Pause between two tries of a storage that does not answer."""
_MISSED_HEARTBEATS = 6  # with fewer, a machine that swaps would count as crashed


def open_storage(url: str, *, heartbeat_s: int) -> RDBStorage:
    """Open a database for studies, and create its tables if needed.

    Raises `ConfigError` when the database's driver is not installed or its file has 0 bytes, and `StorageError` when it
    does not answer.
    """
    from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

    sqlite = url.startswith("sqlite")
    if sqlite:
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        _wait_for_tables(url)
    options = {"connect_args": {"timeout": 60}} if sqlite else {"pool_pre_ping": True}

    def open_tables() -> RDBStorage:
        return RDBStorage(
            url,
            engine_kwargs=options,
            heartbeat_interval=heartbeat_s,
            grace_period=_MISSED_HEARTBEATS * heartbeat_s,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
        )

    with _experimental():
        try:
            try:
                return open_tables()
            except (IntegrityError, ProgrammingError):  # another process has created a table at the same moment
                time.sleep(_CREATED_WITHIN_S)
                return open_tables()
        except ImportError as error:
            raise ConfigError(
                f"storage {url}: {error}. If it is PostgreSQL, call {install_command('postgres')}"
            ) from error
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise StorageError(f"the study's storage {url} cannot be used: {str(cause).strip()}") from error


Result = TypeVar("Result")


def repeat_until_answered(call: Callable[[], Result], *, after_outage: Callable[[], object] = lambda: None) -> Result:
    """Return what a call to a study returns, and repeat the call as long as the study's storage does not answer.

    A trial may have trained for hours, so that a database that restarts must not end it. The first failure of an outage
    is logged. `after_outage` is called before each repetition. Other errors of the storage are raised, such as a value
    that it refuses.
    """
    from sqlalchemy.exc import InterfaceError, OperationalError, TimeoutError

    is_away = False
    while True:
        try:
            if is_away:
                after_outage()
            return call()
        except (StorageInternalError, OperationalError) as error:
            cause = error.__cause__ if isinstance(error, StorageInternalError) else error
            if not isinstance(cause, (OperationalError, InterfaceError, TimeoutError)):
                raise
            if not is_away:
                logger.warning(
                    "the study's storage does not answer: %s. The trials go on, and the storage is asked until it does",
                    one_line(getattr(cause, "orig", None) or cause),
                )
            is_away = True
            time.sleep(_OUTAGE_PAUSE_S)


def _wait_for_tables(url: str) -> None:
    """Wait while the file has 0 bytes, because another process may be creating it. Then refuse it."""
    file, deadline = Path(url.removeprefix("sqlite:///")), time.monotonic() + _CREATED_WITHIN_S
    while file.is_file() and not file.stat().st_size and time.monotonic() < deadline:
        time.sleep(0.1)
    refuse_empty(f"the study's storage {url}", url)


def fail_stale_trials(study: optuna.Study) -> None:
    """Mark trials without a heartbeat as failed, and enqueue them again.

    The storage may have been away without this process having asked it, and then every trial looks stale until its
    process beats again. Therefore trials are marked only if they still have no heartbeat two tries later.
    """
    storage = study._storage
    with _experimental():
        if isinstance(storage, BaseHeartbeat) and storage._get_stale_trial_ids(study._study_id):
            time.sleep(2 * _OUTAGE_PAUSE_S)
        _fail_stale(study)


def record_first_heartbeats(storage: BaseStorage, trials: Iterable[FrozenTrial], known: set[int]) -> None:
    """Record a heartbeat for running trials that are new to this process.

    Otherwise a trial that crashed before its first heartbeat would never become stale. For a live trial this changes
    nothing. `known` has the numbers of earlier trials. It is empty after an outage of the storage, because no trial
    could record a heartbeat during it, and live trials must not count as crashed.
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

    A heartbeat that the storage does not take, for example while its database restarts, is tried again every two
    seconds, and the first failure is logged. A trial is stale only after several missed ones.
    """
    if not isinstance(storage, RDBStorage):
        yield
        return
    interval, done = storage.get_heartbeat_interval(), threading.Event()

    def beat() -> None:
        is_away = False
        while True:
            try:
                storage.record_heartbeat(trial_id)
                is_away = False
            except Exception as error:
                if not is_away:
                    logger.warning("no heartbeat of trial %d was recorded: %s", trial_id, one_line(error))
                is_away = True
            if done.wait(_OUTAGE_PAUSE_S if is_away else interval):
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
