"""Settings of the whole process that code of the user may change, such as the working folder or torch's default dtype.

A stage must compute the same whether the stages before it ran in this process or were cache hits. If a reward calls
`torch.set_default_dtype`, the updates after it would otherwise train in another dtype, and the same run, resumed after
its scores were stored, would not. So `kept` sets these settings back at the end of a stage, and when a module of the
user has been imported, and logs a warning with what was changed. It does not cover what happens within a stage, other
state of the process (a function that was replaced, a file descriptor that was closed), or code that a server calls.

Stages in several threads share the process. A setting that one of them changes therefore stays until the last of them
ends, because otherwise the end of one stage would change what another one computes.
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

from grpo.user_failures import describe, is_from_outside

logger = logging.getLogger(__name__)

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGCHLD", "SIGHUP", "SIGPIPE"))
_VARIABLES = ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_HOME")
_OWN_VARIABLES = "GRPO_"


class _Setting(NamedTuple):
    """One setting of the process: how it is read, and how it is set back to the value that was read."""

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


def _handlers_differ(before: Any, now: Any) -> bool:
    """A handler that was not installed from Python is None, and Python cannot install it."""
    return before is not None and before != now


_PROCESS: dict[str, _Setting] = {
    "the working folder": _Setting(_folder, os.chdir, _folders_differ),
    "the umask": _Setting(_umask, os.umask),
    "variables of the run": _Setting(_variables, os.environ.update, _variables_differ),
    "warnings that are errors": _Setting(
        _raised_warnings, _restore_warnings, lambda before, now: any(entry not in before for entry in now)
    ),
    "the level of logging.disable": _Setting(lambda: logging.root.manager.disable, logging.disable),
    # A higher limit stays: it changes no result, and code that is imported once needs it for as long as it runs.
    "the recursion limit": _Setting(sys.getrecursionlimit, sys.setrecursionlimit, operator.gt),
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


def _thread_settings() -> dict[str, _Setting]:
    """Settings that each thread has for itself, and signal handlers, which only the main thread sets."""
    torch, numpy = _imported("torch"), _imported("numpy")
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
                lambda handler, signum=signum: signal.signal(signum, handler),  # type: ignore[misc]
                _handlers_differ,
            )
    return settings


_guard = threading.Lock()
_depths: dict[int, int] = {}
"""Number of open blocks of each thread that has one."""
_baseline: dict[str, Any] = {}
"""Settings of the process before the first of the blocks that are open now, so that none of them takes over what the
code of another one has changed."""
_names: dict[str, None] = {}
"""Names of the outer blocks since then, in order."""


@contextmanager
def kept(what: str) -> Iterator[None]:
    """Set the settings of the process back at the end of the block, also if it raises, and warn of those that changed.

    A block inside another one of the same thread sets them back to what they were at its own start. Blocks of several
    threads may overlap: the last one that ends sets the settings back to what they were before the first one.
    Settings that each thread has for itself, and signal handlers, are set back at the end of each block.

    A setting that cannot be set back is named in a warning, and neither the other settings nor the result of the block
    are lost.

    Args:
        what: Name of what the block runs, for the warning, e.g. "stage score".

    """
    thread = threading.get_ident()
    own = _thread_settings()
    own_before = _read(own)
    with _guard:
        process_before = _read(_process_settings())
        if not _depths:
            _baseline.clear()
            _names.clear()
        for name, value in process_before.items():
            _baseline.setdefault(name, value)
        nested = thread in _depths
        if not nested:
            _names[what] = None
        _depths[thread] = _depths.get(thread, 0) + 1
    try:
        yield
    finally:
        with _guard:
            _depths[thread] -= 1
            if not _depths[thread]:
                del _depths[thread]
            changed, failures = _restored(own, own_before)
            if nested or not _depths:
                of_process = _restored(_process_settings(), process_before if nested else _baseline)
                changed, failures = of_process[0] + changed, of_process[1] + failures
            name = what if nested or _depths else ", ".join(_names)
        if changed:
            logger.warning(
                "%s: user code changed %s. The change was undone, because later stages would compute with it. Make "
                "such changes in the environment of the process, or undo them in the same block of code",
                name,
                ", ".join(changed),
            )
        if failures:
            logger.warning(
                "%s: user code changed settings of the process that cannot be restored: %s. Later stages may compute "
                "with the changed ones",
                name,
                ", ".join(failures),
            )


def _process_settings() -> dict[str, _Setting]:
    """Settings that all threads share. Those of torch are among them as soon as it has been imported."""
    torch = _imported("torch")
    return _PROCESS | ({} if torch is None else _torch_settings(torch))


def _read(settings: Mapping[str, _Setting]) -> dict[str, Any]:
    return {name: setting.read() for name, setting in settings.items()}


def _restored(settings: Mapping[str, _Setting], before: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Set back the settings that differ from before. Returns their names, and the failures with their reasons."""
    changed: list[str] = []
    failures: list[str] = []
    for name, value in before.items():
        try:
            if settings[name].differs(value, settings[name].read()):
                settings[name].restore(value)
                changed.append(name)
        except BaseException as error:  # any reason must leave the other settings and the result of the block
            if is_from_outside(error):
                raise
            failures.append(f"{name} ({describe(error)})")
    return changed, failures


def _imported(name: str) -> Any | None:
    """A package that this process has imported, or None, also while another thread is importing it.

    A package that is half imported has some of its names and lacks others.
    """
    package = sys.modules.get(name)
    return None if package is None or getattr(package.__spec__, "_initializing", False) else package
