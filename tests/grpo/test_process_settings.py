"""What code of the user changes in the process does not reach the next stage."""

from __future__ import annotations

import locale
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

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
    "the recursion limit": (lambda: sys.setrecursionlimit(10_000), sys.getrecursionlimit),
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
    assert [record.getMessage().partition(". ")[0] for record in caplog.records] == [
        f"stage changing: code of the user changed {setting}"
    ]


def test_a_setting_that_a_module_changes_when_it_is_imported_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Whether a process has imported the module does not change what it computes."""
    text = "import os, torch\ntorch.set_default_dtype(torch.float64)\nos.chdir('/')\nREWARD = 1\n"
    (tmp_path / "sets_the_dtype.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert load_object("sets_the_dtype:REWARD") == 1
    assert (torch.get_default_dtype(), Path.cwd()) == (torch.float32, tmp_path)
    assert "module sets_the_dtype: code of the user changed the working folder, torch's default dtype" in caplog.text


def test_variables_that_a_module_adds_stay(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """A module may read keys from a file."""
    monkeypatch.delenv("GRPO_ROLLOUT_KEY", raising=False)
    with kept("module keys"):
        monkeypatch.setenv("GRPO_ROLLOUT_KEY", "grpo-1")
    assert os.environ["GRPO_ROLLOUT_KEY"] == "grpo-1"
    assert not caplog.records


def test_a_block_that_begins_after_a_change_in_another_one_does_not_keep_the_change():
    """Two shards in two threads: the first changes the dtype, the second begins then and ends last."""
    begin, end = threading.Event(), threading.Event()

    def second() -> None:
        begin.wait()
        with kept("shard 2"):
            begun.set()
            end.wait()

    begun = threading.Event()
    thread = threading.Thread(target=second)
    thread.start()
    with kept("shard 1"):
        torch.set_default_dtype(torch.float64)
        begin.set()
        begun.wait()
    end.set()
    thread.join()
    assert torch.get_default_dtype() == torch.float32
