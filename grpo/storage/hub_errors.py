"""Errors of the Hugging Face hub, with their remedy. No message repeats a token or a text of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from grpo.errors import DataError, GRPOError, PolicyError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

_REFUSALS: Final[dict[str, type[PolicyError | DataError]]] = {"model": PolicyError, "dataset": DataError}
_NOUNS = {"model": "model", "dataset": "data set"}
_UNKNOWN = 401
"""Status of the hub for a repository that does not exist or is private, without a token."""
_REFUSED = (401, 403)
_AGAIN = "Run it again, or set HF_HUB_OFFLINE=1 to take it from the cache"


@contextmanager
def hub_errors(address: str, repo: str, kind: Literal["model", "dataset"]) -> Iterator[None]:
    """Turn the exceptions of huggingface_hub into a `PolicyError` or `DataError` with the remedy, or `ConnectionError`.

    `address` is a repository with its revision.
    """
    from huggingface_hub import constants, errors
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    hub, refusal, noun = constants.ENDPOINT, _REFUSALS[kind], _NOUNS[kind]
    try:
        yield
    except (GRPOError, ConnectionError, TimeoutError):
        raise
    except errors.HfHubHTTPError as error:
        raise _answer(error, address, repo, kind) from error
    except errors.HFValidationError as error:
        raise refusal(f"{address} is not a {noun} on a hub: write org/name or org/name@revision") from error
    except (errors.LocalEntryNotFoundError, errors.FileMetadataError, HTTPError) as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise _answer(error.__cause__, address, repo, kind) from error
        elsewhere = f"no folder {repo} here, and " if kind == "model" else ""
        raise ConnectionError(f"{address}: {elsewhere}{hub} cannot be reached or breaks off. {_AGAIN}") from error
    except OSError as error:
        if "Consistency check failed" not in str(error):  # of the size, by huggingface_hub
            raise
        raise ConnectionError(f"{address}: a file from {hub} is shorter or longer than listed. {_AGAIN}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise refusal(
            f"{address}: the answer of {hub} does not come from a hub: {error!r}. Check HF_ENDPOINT"
        ) from error


def _answer(
    error: HfHubHTTPError, address: str, repo: str, kind: Literal["model", "dataset"]
) -> PolicyError | DataError | ConnectionError:
    """Error for an answer in which the hub refuses or fails."""
    from huggingface_hub import constants, errors, get_token

    hub, status = constants.ENDPOINT, error.response.status_code
    refusal, noun, has_token = _REFUSALS[kind], _NOUNS[kind], get_token() is not None
    page = f"{hub}/{repo}" if kind == "model" else f"{hub}/datasets/{repo}"
    token = "HF_TOKEN is set" if has_token else "HF_TOKEN is not set"
    if isinstance(error, errors.GatedRepoError):
        return refusal(
            f"{address} is gated: accept its terms at {page}, and set HF_TOKEN to a token of that account ({token})"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return refusal(f"no revision {address} at {hub}. The branches and tags are at {page}/tree/main")
    if isinstance(error, errors.RepositoryNotFoundError) or (status == _UNKNOWN and not has_token):
        elsewhere = f"no folder {repo} here, and " if kind == "model" else ""
        return refusal(
            f"{elsewhere}no {noun} {repo} at {hub} ({token}). Check the name at {page}, and for a "
            "private one set HF_TOKEN"
        )
    if status in _REFUSED:
        return refusal(
            f"{address}: {hub} answers {status} ({token}). Set HF_TOKEN to a valid token of an account that may read "
            f"{page}"
        )
    return ConnectionError(f"{address}: {hub} answers {status}. {_AGAIN}")
