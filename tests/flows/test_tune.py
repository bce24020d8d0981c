"""The watch of a tuning over its trials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import OperationalError

from grpo.tuning import storage
from grpo_flows import tune


def test_a_storage_that_restarts_ends_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Two looks fail while a trial goes on. An error would end all workers with the hours of their trials."""
    study = optuna.create_study(storage=f"sqlite:///{tmp_path / 'tuning.db'}")
    failures, looks = [OperationalError("SELECT 1", {}, OSError("the server closed it"))] * 2, list[bool]()
    read = study.get_trials

    def get_trials(**options: Any) -> Any:
        if looks and failures:
            raise StorageInternalError("an exception is raised") from failures.pop()
        return read(**options)

    def is_final() -> bool:
        looks.append(not failures)
        if looks[-1]:
            study.tell(study.ask(), 0.5)
        return looks[-1]

    @contextmanager
    def workers(*_: object) -> Iterator[list[Any]]:
        yield [SimpleNamespace(state=SimpleNamespace(is_final=is_final))]

    monkeypatch.setattr(study, "get_trials", get_trials)
    monkeypatch.setattr(tune, "_trial_workers", workers)
    monkeypatch.setattr(tune, "_POLL_S", 0.0)
    monkeypatch.setattr(storage, "_OUTAGE_PAUSE_S", 0.0)
    config, tracker = SimpleNamespace(n_trials=1), SimpleNamespace(add=lambda trial: False)
    tune._run_trials(config, study, tracker, url="", start="", lock=tmp_path)  # type: ignore[arg-type]
    assert looks == [False, True]
    lines = [line for line in caplog.messages if "the study's storage does not answer" in line]
    assert len(lines) == 1, "one for the outage"
