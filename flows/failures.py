"""Failures of servers, databases and disks, which reach a command in the types of many libraries."""

from __future__ import annotations

import os
import sys

from grpo.errors import GRPOError, RegistryError
from grpo.storage.credentials import masked
from grpo.storage.files import causes, storage_error
from grpo.storage.home import home

_AGAIN = "Give the command again: what was finished is in the cache"


def known_failure(error: Exception) -> Exception | None:
    """The error whose text has value, place and remedy; None for one that is not understood.

    An error of this package is itself. A full disk, a server that is away and a database that cannot be used are
    recognized by what they were raised from.
    """
    if isinstance(error, GRPOError):
        return error
    if (full := storage_error(error, str(home()))) is not None:
        return full
    raised = list(causes(error))
    known = (failure for cause in raised if (failure := _failure(cause)) is not None)
    refused = (cause for cause in raised if _is(cause, "mlflow.exceptions", "MlflowException"))
    return next(known, None) or next((_refusal(cause) for cause in refused), None)


def _failure(error: BaseException) -> Exception | None:
    if isinstance(error, (ConnectionError, TimeoutError)) and error.errno is None:
        return error  # ours, with address and remedy
    if _is(error, "sqlalchemy.exc", "DBAPIError"):
        reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
        return ConnectionError(f"a database cannot be used: {reason}; `grpo doctor` names it. {_AGAIN}")
    if _is(error, "requests.exceptions", "ConnectionError", "Timeout"):
        tracking = masked(os.environ.get("MLFLOW_TRACKING_URI", ""))
        return ConnectionError(
            f"MLflow at {tracking} cannot be reached; start it, or set MLFLOW_TRACKING_URI. {_AGAIN}"
        )
    if _is(error, "mlflow.exceptions", "MlflowException") and error.__cause__ is None and error.__context__ is None:
        return RegistryError(f"MLflow refuses: {' '.join(str(error).split())[:300]}")
    if _is(error, "httpx", "HTTPStatusError"):
        answer = error.response  # type: ignore[attr-defined]
        return ConnectionError(
            f"{masked(str(answer.url))} answered HTTP {answer.status_code}; look into its log, or set another address. "
            f"{_AGAIN}"
        )
    if _is(error, "httpx", "TransportError") or str(error).startswith("Failed to reach API at"):
        return ConnectionError(
            f"Prefect's server at {_asked(error)} cannot be reached ({error or type(error).__name__}); start it, or "
            f"set PREFECT_API_URL. {_AGAIN}"
        )
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(f"{error.filename or 'the system'}: {error.strerror}")
    return None


def _asked(error: BaseException) -> str:
    """The address that was asked: of the setting, or, where a server of this command is gone, of the request."""
    request = getattr(error, "_request", None)
    url = os.environ.get("PREFECT_API_URL") or (str(request.url.join("/api")) if request is not None else "")
    return masked(url) or "an unknown address"


def _refusal(error: BaseException) -> RegistryError:
    return RegistryError(f"MLflow refuses: {' '.join(str(error).split())[:300]}")


def _is(error: BaseException, module: str, *names: str) -> bool:
    """Whether it is of one of these types; a library that is not loaded has raised nothing."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(error, tuple(getattr(loaded, name) for name in names))
