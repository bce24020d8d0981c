"""Exit codes of commands, and the one-line messages of expected failures.

0 done, 1 failed, 2 wrong input, 3 a gate refused, 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import typer
from rich.text import Text

from grpo.errors import AddressError, ConfigError, GRPOError, PromotionRefused, RegistryError, printable
from grpo.storage.credentials import masked
from grpo.storage.files import NO_ROOM_BYTES, causes, is_full, storage_error
from grpo.storage.home import home
from grpo.user_failures import is_exception, user_code
from grpo_cli.console import PlainConsole
from grpo_local.login import LOGIN_REMEDIES

P = ParamSpec("P")
R = TypeVar("R")

FAILED, WRONG_INPUT, REFUSED = 1, 2, 3
_UNAUTHORIZED = 401
_STDOUT = 1
_OUTPUT = "the file of this command's output"
_ADDRESS = re.compile(r"(?<!\S)\S+://\S+")
_OS_REMEDIES = {
    errno.EACCES: "Fix the permissions, or name another place",
    errno.EPERM: "Fix the permissions, or name another place",
    errno.EMFILE: "Raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "Close programs that have files open",
}
_AGAIN = "Then run the command again, which continues after the last finished stage"
logger = logging.getLogger(__name__)


def with_exit_codes(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command so that an expected failure becomes one line and an exit code."""

    @functools.wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with exit_codes(places=[value for value in kwargs.values() if isinstance(value, Path)]):
            return command(*args, **kwargs)

    return call


@contextmanager
def exit_codes(
    *, wrong_input: tuple[type[Exception], ...] = (ConfigError, AddressError), places: Sequence[Path] = ()
) -> Iterator[None]:
    """Print an expected failure as one line. Errors of the types `wrong_input` have exit code 2.

    `places` are files and folders that the command was given, which it may write.

    If the user's code raises an exception that would end the process, e.g. `SystemExit`, it counts as such a failure,
    with the exit code of a failed command. Any other exception is a fault of this project and keeps its traceback.
    """
    try:
        with user_code("code of this command", passes=is_exception):
            yield
    except typer.Exit:
        raise
    except Exception as error:
        if any(isinstance(cause, BrokenPipeError) for cause in causes(error)) and _reader_has_left():
            _write_no_more()
            raise typer.Exit(FAILED) from error
        failure = known_failure(error, places)
        if failure is None:
            raise
        logger.debug("the command failed with", exc_info=error)
        message = _ADDRESS.sub(lambda address: masked(address[0]), str(failure))
        line = Text.assemble((type(failure).__name__, "red"), ": ", printable(message))
        PlainConsole(stderr=True).print(line, soft_wrap=True)
        if isinstance(failure, PromotionRefused):
            raise typer.Exit(REFUSED) from error
        raise typer.Exit(WRONG_INPUT if isinstance(failure, wrong_input) else FAILED) from error


def known_failure(error: Exception, places: Sequence[Path] = ()) -> Exception | None:
    """The error with value, place and remedy in its message. None if the error is unexpected.

    An error of this package is returned unchanged. A full disk, an unreachable server and an unusable database are
    recognized by the chain of causes. If an error names no file, e.g. of a full disk, it is of the first of `places`
    with a full disk, or else of the home, unless only the disk of the command's output is full.
    """
    if isinstance(error, GRPOError):
        return error
    place = next((place for place in places if is_full(place)), home())
    output = not is_full(place) and _output_is_full()
    if (full := storage_error(error, _OUTPUT if output else str(place))) is not None:
        return full
    chain = list(causes(error))
    known = (failure for cause in chain if (failure := _failure(cause)) is not None)
    refused = (cause for cause in chain if _is(cause, "mlflow.exceptions", "MlflowException"))
    return next(known, None) or next((_mlflow_refusal(cause) for cause in refused), None)


def _reader_has_left() -> bool:
    """True if stdout is a pipe and its reader has ended, as in `grpo models | head -1`."""
    poll = select.poll()
    poll.register(_STDOUT, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _write_no_more() -> None:
    """Discard what is still buffered for stdout, because Python reports it as an error when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT)
    os.close(nowhere)


def _output_is_full() -> bool:
    """True if stdout is a file, and its disk has no room."""
    try:
        disk = os.fstatvfs(_STDOUT)
        return stat.S_ISREG(os.fstat(_STDOUT).st_mode) and disk.f_bavail * disk.f_frsize < NO_ROOM_BYTES
    except OSError:  # stdout is closed
        return False


def _failure(error: BaseException) -> Exception | None:
    if isinstance(error, (ConnectionError, TimeoutError)) and error.errno is None:
        return error  # ours, with address and remedy
    if _is(error, "sqlalchemy.exc", "DBAPIError"):
        reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
        return ConnectionError(f"a database cannot be used: {reason}. `grpo doctor` shows which one. {_AGAIN}")
    if _is(error, "requests.exceptions", "HTTPError") and _status(error) == _UNAUTHORIZED:
        return _refused_login()
    if _is(error, "requests.exceptions", "ConnectionError", "Timeout"):
        tracking = masked(os.environ.get("MLFLOW_TRACKING_URI", ""))
        return ConnectionError(
            f"MLflow at {tracking} cannot be reached. Start it, or set MLFLOW_TRACKING_URI. {_AGAIN}"
        )
    if _is(error, "mlflow.exceptions", "MlflowException") and error.__cause__ is None and error.__context__ is None:
        return _mlflow_refusal(error)
    if _is(error, "httpx", "HTTPStatusError"):
        response = error.response  # type: ignore[attr-defined]
        return ConnectionError(
            f"{masked(str(response.url))} answered HTTP {response.status_code}. Look into the log of that server, or "
            f"set the address of another one. {_AGAIN}"
        )
    if _is(error, "httpx", "TransportError") or str(error).startswith("Failed to reach API at"):
        return ConnectionError(
            f"Prefect's server at {_requested(error)} cannot be reached ({error or type(error).__name__}). Start it, "
            f"or set PREFECT_API_URL. {_AGAIN}"
        )
    if isinstance(error, OSError) and error.errno is not None:
        remedy = _OS_REMEDIES.get(error.errno)
        return OSError(f"{error.filename or 'the system'}: {error.strerror}{'' if remedy is None else f'. {remedy}'}")
    return None


def _refused_login() -> ConnectionError:
    tracking = masked(os.environ.get("MLFLOW_TRACKING_URI", ""))
    return ConnectionError(f"MLflow at {tracking} refuses the login. {LOGIN_REMEDIES['mlflow']}")


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _requested(error: BaseException) -> str:
    """The requested address: from the setting, or from the request if a server of this command is gone."""
    request = getattr(error, "_request", None)
    url = os.environ.get("PREFECT_API_URL") or (str(request.url.join("/api")) if request is not None else "")
    return masked(url) or "an unknown address"


def _mlflow_refusal(error: BaseException) -> Exception:
    if getattr(error, "error_code", None) == "UNAUTHENTICATED":
        return _refused_login()
    return RegistryError(f"MLflow refuses: {' '.join(str(error).split())[:300]}")


def _is(error: BaseException, module: str, *names: str) -> bool:
    """True for an error of one of these types. A library that is not imported, or only half, did not raise it."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(error, tuple(getattr(loaded, name, ()) for name in names))
