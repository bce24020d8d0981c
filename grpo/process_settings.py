"""Settings of the whole process that code of the user may change, such as the working folder or torch's default dtype.

A stage must compute the same whether the stages before it ran in this process or were cache hits. If a reward calls
`torch.set_default_dtype`, the updates after it would otherwise train in another dtype, and the same run, resumed after
its scores were stored, would not. So `kept` sets these settings back at the end of a stage, and when a module of the
user has been imported, and logs a warning with what was changed. It does not cover what happens within a stage, other
state of the process (a function that was replaced, a file descriptor that was closed), or code that a server calls.
"""

from __future__ import annotations

import locale
import logging
import operator
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGCHLD", "SIGHUP", "SIGPIPE"))
_VARIABLES = ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_HOME")
_OWN_VARIABLES = "GRPO_"


class _Setting(NamedTuple):
    """How one setting is read, and set back to what was read."""

    read: Callable[[], Any]
    restore: Callable[[Any], object]
    differs: Callable[[Any, Any], bool] = operator.ne
    """True if a value, given after the one from before, has to be set back."""


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # it was removed
        return None


def _folders_differ(before: Path | None, now: Path | None) -> bool:
    return before is not None and before != now and before.is_dir()


def _variables() -> dict[str, str]:
    """Variables that say where a run reads and writes."""
    return {name: text for name, text in os.environ.items() if name in _VARIABLES or name.startswith(_OWN_VARIABLES)}


def _variables_differ(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """True for changes and removals. Variables that were added stay, because a module may read keys from a file."""
    return not before.items() <= now.items()


def _raised_warnings() -> list[Any]:
    return [entry for entry in warnings.filters if entry[0] == "error"]


def _restore_warnings(before: list[Any]) -> None:
    """Remove filters that turn warnings into errors, because other stages would fail at any warning."""
    warnings.filters[:] = [entry for entry in warnings.filters if entry[0] != "error" or entry in before]  # type: ignore[index]


_PROCESS: dict[str, _Setting] = {
    "the working folder": _Setting(_folder, os.chdir, _folders_differ),
    "the umask": _Setting(_umask, os.umask),
    "variables of the run": _Setting(_variables, os.environ.update, _variables_differ),
    "warnings that are errors": _Setting(
        _raised_warnings, _restore_warnings, lambda before, now: any(entry not in before for entry in now)
    ),
    "the level of logging.disable": _Setting(lambda: logging.root.manager.disable, logging.disable),
    "the recursion limit": _Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    "the timeout of sockets": _Setting(socket.getdefaulttimeout, socket.setdefaulttimeout),
    "the locale": _Setting(
        lambda: locale.setlocale(locale.LC_ALL), lambda before: locale.setlocale(locale.LC_ALL, before)
    ),
    "sys.excepthook": _Setting(lambda: sys.excepthook, lambda hook: setattr(sys, "excepthook", hook)),
}


def _torch_settings(torch: Any) -> dict[str, _Setting]:
    return {
        "torch's default dtype": _Setting(torch.get_default_dtype, torch.set_default_dtype),
        "torch's number of threads": _Setting(torch.get_num_threads, torch.set_num_threads),
        "torch's precision of float32 products": _Setting(
            torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
        ),
        "torch's anomaly mode": _Setting(
            torch.is_anomaly_enabled, lambda enabled: torch.autograd.set_detect_anomaly(enabled)
        ),
    }


def _thread_settings(torch: Any | None, numpy: Any | None) -> dict[str, _Setting]:
    """Settings that each thread has for itself, and signal handlers, which only the main thread sets."""
    settings: dict[str, _Setting] = {}
    if torch is not None:
        settings["torch's computation of gradients"] = _Setting(torch.is_grad_enabled, torch.set_grad_enabled)
        settings["torch's default device"] = _Setting(
            lambda: str(torch.get_default_device()),
            lambda device: torch.set_default_device(None if device == "cpu" else device),
        )
    if numpy is not None:
        settings["NumPy's error handling"] = _Setting(numpy.geterr, lambda before: numpy.seterr(**before))
    if threading.current_thread() is threading.main_thread():
        for signum in _SIGNALS:
            settings[f"the handler of {signum.name}"] = _Setting(
                lambda signum=signum: signal.getsignal(signum),  # type: ignore[misc]
                lambda handler, signum=signum: handler is None or signal.signal(signum, handler),  # type: ignore[misc]
            )
    return settings


_guard = threading.Lock()
_running = 0
_baseline: dict[str, Any] = {}
"""Settings of the process before the first of the blocks that run now, so that none of them takes over what the code
of another one has changed."""


@contextmanager
def kept(what: str) -> Iterator[None]:
    """Set the settings of the process back at the end of the block, also if it raises, and warn of those that changed.

    Blocks may overlap in several threads. Changes that this project makes to signal handlers or to torch in one thread
    are not touched by the end of a block in another thread.

    Args:
        what: Name of what the block runs, for the warning, e.g. "stage score".

    """
    global _running
    torch, numpy = _imported("torch", "set_float32_matmul_precision"), _imported("numpy", "seterr")
    process = _PROCESS | ({} if torch is None else _torch_settings(torch))
    own = _thread_settings(torch, numpy)
    before = {name: setting.read() for name, setting in own.items()}
    with _guard:
        if not _running:
            _baseline.clear()
        for name, setting in process.items():
            if name not in _baseline:
                _baseline[name] = setting.read()
        _running += 1
    try:
        yield
    finally:
        with _guard:
            _running -= 1
            changed = _restored(process, _baseline) + _restored(own, before)
        if changed:
            logger.warning(
                "%s: code of the user changed %s. This was set back, because other stages would compute with it. "
                "Change such settings in the environment of the process, or only for the time of a block",
                what,
                ", ".join(changed),
            )


def _restored(settings: Mapping[str, _Setting], before: Mapping[str, Any]) -> list[str]:
    """Names of the settings that differ from before. They are set back."""
    changed = [name for name, setting in settings.items() if setting.differs(before[name], setting.read())]
    for name in changed:
        settings[name].restore(before[name])
    return changed


def _imported(name: str, last: str) -> Any | None:
    """A package that this process has imported, or None. It has the name `last` once its import is complete."""
    package = sys.modules.get(name)
    return package if hasattr(package, last) else None
