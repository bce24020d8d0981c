"""Errors of the Hugging Face hub, with their remedy; no message repeats a token or a text of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grpo.errors import GRPOError, PolicyError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

_UNKNOWN = 401
"""Status of the hub for a model that does not exist or is private, without a token."""
_REFUSED = (401, 403)
_AGAIN = "run it again, or set HF_HUB_OFFLINE=1 to take the model from the cache"


@contextmanager
def hub_errors(model: str, repo: str) -> Iterator[None]:
    """Turn the exceptions of huggingface_hub into a `PolicyError` with the remedy, or a `ConnectionError`."""
    from huggingface_hub import constants, errors
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    hub = constants.ENDPOINT
    try:
        yield
    except (GRPOError, ConnectionError, TimeoutError):
        raise
    except errors.HfHubHTTPError as error:
        raise _answer(error, model, repo) from error
    except errors.HFValidationError as error:
        raise PolicyError(f"{model} is not a model on a hub: write org/name or org/name@revision") from error
    except (errors.LocalEntryNotFoundError, errors.FileMetadataError, HTTPError) as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise _answer(error.__cause__, model, repo) from error
        raise ConnectionError(f"{model}: {hub} cannot be reached or breaks off; {_AGAIN}") from error
    except OSError as error:
        if "Consistency check failed" not in str(error):  # of the size, by huggingface_hub
            raise
        raise ConnectionError(f"{model}: a file from {hub} is shorter or longer than listed; {_AGAIN}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise PolicyError(f"{model}: the answer of {hub} is not that of a hub: {error!r}; check HF_ENDPOINT") from error


def _answer(error: HfHubHTTPError, model: str, repo: str) -> PolicyError | ConnectionError:
    """Error for an answer of the hub that is a refusal or a failure."""
    from huggingface_hub import constants, errors, get_token

    hub, status = constants.ENDPOINT, error.response.status_code
    page, has_token = f"{hub}/{repo}", get_token() is not None
    token = "HF_TOKEN is set" if has_token else "HF_TOKEN is not set"
    if isinstance(error, errors.GatedRepoError):
        return PolicyError(
            f"{model} is gated: accept its terms at {page}, and set HF_TOKEN to a token of that account ({token})"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return PolicyError(f"no revision {model} at {hub}; the branches and tags are at {page}/tree/main")
    if isinstance(error, errors.RepositoryNotFoundError) or (status == _UNKNOWN and not has_token):
        return PolicyError(
            f"no folder {repo} here, and no model {repo} at {hub} ({token}); check the name at {page}, and for a "
            "private one set HF_TOKEN"
        )
    if status in _REFUSED:
        return PolicyError(
            f"{model}: {hub} answers {status} ({token}); set HF_TOKEN to a valid token of an account that may read "
            f"{page}"
        )
    return ConnectionError(f"{model}: {hub} answers {status}; {_AGAIN}")
