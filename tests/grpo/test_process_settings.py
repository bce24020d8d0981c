"""What code of the user changes in the process does not reach the next stage."""

from __future__ import annotations

import importlib.machinery
import locale
import logging
import os
import signal
import socket
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from grpo import process_settings
from grpo.process_settings import kept
from grpo.user_objects import load_object
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import uncached_stage

CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "the working folder": (lambda: os.chdir("/"), Path.cwd),
    "the umask": (lambda: os.umask(0), lambda: os.umask(0o077)),
    "variables of the run": (lambda: os.environ.pop("GRPO_HOME"), lambda: os.environ.get("GRPO_HOME")),
    "warnings that are errors": (
        lambda: warnings.simplefilter("error", ResourceWarning),
        lambda: [entry for entry in warnings.filters if entry[0] == "error"],
    ),
    "the level of logging.disable": (lambda: logging.disable(logging.INFO), lambda: logging.root.manager.disable),
    "the recursion limit": (lambda: sys.setrecursionlimit(sys.getrecursionlimit() - 1), sys.getrecursionlimit),
    "the timeout of sockets": (lambda: socket.setdefaulttimeout(0.001), socket.getdefaulttimeout),
    "the locale": (lambda: locale.setlocale(locale.LC_ALL, "POSIX"), lambda: locale.setlocale(locale.LC_ALL)),
    "sys.excepthook": (lambda: setattr(sys, "excepthook", print), lambda: sys.excepthook),
    "torch's default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "torch's number of threads": (lambda: torch.set_num_threads(3), torch.get_num_threads),
    "torch's precision of float32 products": (
        lambda: torch.set_float32_matmul_precision("medium"),
        torch.get_float32_matmul_precision,
    ),
    "torch's anomaly mode": (lambda: torch.autograd.set_detect_anomaly(True, check_nan=True), torch.is_anomaly_enabled),
    "torch's computation of gradients": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "torch's default device": (lambda: torch.set_default_device("meta"), torch.get_default_device),
    "NumPy's error handling": (lambda: np.seterr(all="raise"), np.geterr),
    "the handler of SIGTERM": (
        lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        lambda: signal.getsignal(signal.SIGTERM),
    ),
    "the handler of SIGCHLD": (
        lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        lambda: signal.getsignal(signal.SIGCHLD),
    ),
}


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder and a locale of its own, and nothing left behind if a test fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    before, mask = locale.setlocale(locale.LC_ALL), os.umask(0o077)
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    with warnings.catch_warnings(), kept("the test"):
        yield
    locale.setlocale(locale.LC_ALL, before)
    os.umask(mask)


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines about settings. Threads of other tests may log as well."""
    return [record.getMessage() for record in caplog.records if record.name == "grpo.process_settings"]


@uncached_stage
def changing(setting: str, store: str) -> StageResult:
    """A stage whose user code changes a setting and raises."""
    CHANGES[setting][0]()
    raise ValueError(setting)


@pytest.mark.parametrize("setting", CHANGES)
def test_a_setting_that_a_stage_changes_is_set_back(setting: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Also if the stage fails. One warning names the stage and the setting."""
    read = CHANGES[setting][1]
    before = read()
    with pytest.raises(ValueError, match=setting):
        changing.fn(setting=setting, store=str(tmp_path))
    assert read() == before
    assert [line.partition(". ")[0] for line in _lines(caplog)] == [f"stage changing: user code changed {setting}"]


def test_a_setting_that_a_module_changes_when_it_is_imported_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Whether a process has imported the module does not change what it computes."""
    text = "import os, torch\ntorch.set_default_dtype(torch.float64)\nos.chdir('/')\nREWARD = 1\n"
    (tmp_path / "sets_the_dtype.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert load_object("sets_the_dtype:REWARD") == 1
    assert (torch.get_default_dtype(), Path.cwd()) == (torch.float32, tmp_path)
    assert "module sets_the_dtype: user code changed the working folder, torch's default dtype" in caplog.text


def test_variables_that_a_module_adds_stay(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """A module may read keys from a file."""
    monkeypatch.delenv("GRPO_ROLLOUT_KEY", raising=False)
    with kept("module keys"):
        monkeypatch.setenv("GRPO_ROLLOUT_KEY", "grpo-1")
    assert os.environ["GRPO_ROLLOUT_KEY"] == "grpo-1"
    assert not _lines(caplog)


@contextmanager
def _stage_elsewhere(what: str) -> Iterator[None]:
    """Another thread is in a stage for the time of the block."""
    begun, end = threading.Event(), threading.Event()

    def run() -> None:
        with kept(what):
            begun.set()
            end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_the_last_of_the_stages_in_several_threads_sets_back_what_any_of_them_changed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Shard 1 changes the dtype, shard 2 begins then and ends first: shard 1 goes on in the dtype that it has set."""
    with monkeypatch.context() as patch:
        patch.setattr(process_settings, "_depths", {})  # the fixture's own block would be the last one
        with _stage_elsewhere("shard 2"):
            with kept("shard 1"):
                torch.set_default_dtype(torch.float64)
                with _stage_elsewhere("shard 3"):
                    pass
                assert torch.get_default_dtype() == torch.float64
            assert torch.get_default_dtype() == torch.float64
    assert torch.get_default_dtype() == torch.float32
    assert "shard 2, shard 1, shard 3: user code changed torch's default dtype" in caplog.text


def test_an_import_within_a_stage_leaves_what_the_stage_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Only what the module itself changes is set back, and it is not blamed for the stage's change."""
    (tmp_path / "sets_the_precision.py").write_text(
        "import torch\ntorch.set_float32_matmul_precision('medium')\nREWARD = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with kept("stage score"):
        torch.set_default_dtype(torch.float64)
        load_object("sets_the_precision:REWARD")
        assert (torch.get_default_dtype(), torch.get_float32_matmul_precision()) == (torch.float64, "highest")
    assert [line.partition(". ")[0] for line in _lines(caplog)] == [
        "module sets_the_precision: user code changed torch's precision of float32 products",
        "stage score: user code changed torch's default dtype",
    ]


def test_a_recursion_limit_that_was_raised_stays(caplog: pytest.LogCaptureFixture):
    """A parser that raises it when it is imported needs it when it runs."""
    limit = sys.getrecursionlimit()
    try:
        with kept("module parser"):
            sys.setrecursionlimit(limit + 7)
        assert sys.getrecursionlimit() == limit + 7
        assert not _lines(caplog)
    finally:
        sys.setrecursionlimit(limit)


def test_a_setting_that_cannot_be_set_back_leaves_the_others_and_the_result(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The working folder comes first: torch's dtype is set back all the same, and the stage has its result."""

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setitem(
        process_settings._PROCESS,
        "the working folder",
        process_settings._PROCESS["the working folder"]._replace(restore=refuse),
    )

    def scored() -> float:
        with kept("stage score"):
            os.chdir("/")
            torch.set_default_dtype(torch.float64)
            return 0.5

    assert scored() == 0.5
    assert torch.get_default_dtype() == torch.float32
    assert "stage score: user code changed torch's default dtype. The change was undone" in caplog.text
    assert "settings of the process that cannot be restored: the working folder (Perm" in caplog.text


def test_a_handler_that_was_not_installed_from_python_is_not_reported_as_set_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Python reads such a handler as None and cannot install it."""
    handlers = {signal.SIGHUP: None}
    monkeypatch.setattr(signal, "getsignal", lambda signum: handlers.get(signum, signal.SIG_DFL))
    with kept("stage score"):
        handlers[signal.SIGHUP] = signal.SIG_IGN  # type: ignore[assignment]
    assert not _lines(caplog)


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_a_package_that_another_thread_is_importing_is_left_alone(monkeypatch: pytest.MonkeyPatch, name: str):
    """Shards of a rollout run in threads. The first one imports torch, and the second one begins in the middle of it.

    torch has `set_float32_matmul_precision` before it has `set_grad_enabled`.
    """
    half = types.ModuleType(name)
    half.__spec__ = importlib.machinery.ModuleSpec(name, None)
    half.__spec__._initializing = True  # type: ignore[attr-defined]
    for early in ("set_float32_matmul_precision", "get_default_dtype", "seterr"):
        setattr(half, early, None)
    monkeypatch.setitem(sys.modules, name, half)
    with kept("stage rollout"):
        pass
