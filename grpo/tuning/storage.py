"""Where a study is kept, so that several processes share it and a killed one is noticed."""

from __future__ import annotations

import threading
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

from grpo.errors import ConfigError, StorageError

RETRIES = 3
"""A trial whose process crashed is tried again so often; one that takes its process down each time is given up then."""
_MISSED = 6  # heartbeats; a machine that swaps is slow, not dead


def open_storage(url: str, *, heartbeat_s: int) -> RDBStorage:
    """Open a database for studies, and make its tables if it has none.

    Raises `ConfigError` when the database's driver is not installed, `StorageError` when it does not answer.
    """
    from sqlalchemy.exc import SQLAlchemyError

    sqlite = url.startswith("sqlite")
    if sqlite:
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    options = {"connect_args": {"timeout": 60}} if sqlite else {"pool_pre_ping": True}
    with _experimental():
        try:
            return RDBStorage(
                url,
                engine_kwargs=options,
                heartbeat_interval=heartbeat_s,
                grace_period=_MISSED * heartbeat_s,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
            )
        except ImportError as error:
            raise ConfigError(f"storage {url}: {error}; for PostgreSQL pip install psycopg2-binary") from error
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise StorageError(f"the study's storage {url} cannot be used: {str(cause).strip()}") from error


def fail_stale_trials(study: optuna.Study) -> None:
    """Mark trials without a sign of life as failed, and put them up to be tried again."""
    with _experimental():
        _fail_stale(study)


def record_first_heartbeats(storage: BaseStorage, trials: Iterable[FrozenTrial], known: set[int]) -> None:
    """Give running trials that are new to this process a first sign of life.

    One that crashed before its own would never be missed; of one that is alive it changes nothing. `known` are the
    numbers of those that were seen before.
    """
    if isinstance(storage, RDBStorage):
        for trial in trials:
            if trial.state == TrialState.RUNNING and trial.number not in known:
                storage.record_heartbeat(trial._trial_id)
                known.add(trial.number)


def begin_trial(study: optuna.Study, distributions: Mapping[str, BaseDistribution]) -> Trial:
    """Draw the values of a trial, or take up those of one that is waiting."""
    with _experimental():
        return study.ask(fixed_distributions=dict(distributions))


@contextmanager
def heartbeat(storage: BaseStorage, trial_id: int) -> Iterator[None]:
    """Give signs of life for a trial while the block runs, where the storage has use for them."""
    if not isinstance(storage, RDBStorage):
        yield
        return
    interval, over = storage.get_heartbeat_interval(), threading.Event()

    def beat() -> None:
        storage.record_heartbeat(trial_id)
        while not over.wait(interval):
            storage.record_heartbeat(trial_id)

    thread = threading.Thread(target=beat, name=f"heartbeat-{trial_id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _experimental() -> Iterator[None]:
    """Heartbeats are marked experimental; outside of `Study.optimize` one gives them oneself, as `heartbeat` does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed")
        yield
