"""Endpoint of an OpenAI-compatible server: address, client, and the errors of its requests.

The API key is read from the environment when a client is created. It is never in an attribute, log or error message.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from json import JSONDecodeError
from typing import TypeVar
from urllib.parse import urlsplit

from grpo.errors import PolicyError, install_command

try:
    from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, AsyncOpenAI
except ModuleNotFoundError as error:
    raise PolicyError(f"package openai is not installed. Call {install_command('openai')}") from error

T = TypeVar("T")

KEY = "OPENAI_API_KEY"
_REFUSED = (401, 403)
_BUSY = (408, 409, 429)
_NOT_FOUND = 404


class RequestFailed(PolicyError):
    """Raised if the server's response to this request is unusable. Other requests may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIEndpoint:
    """A model on a server. `/chat/completions` or `/completions` is appended to `base_url`."""

    base_url: str
    model: str
    timeout_s: float = 60.0
    """Timeout of one attempt, in seconds."""
    retries: int = 2
    """Retries after a connection error, a timeout, or HTTP 429 or 5xx."""
    key: str = KEY
    """Environment variable of the API key."""

    @classmethod
    def from_address(cls, url: str, *, timeout_s: float = 60.0, retries: int = 2, key: str = KEY) -> OpenAIEndpoint:
        """Parse an address with a model, e.g. `https://api.openai.com/v1#gpt-4.1`."""
        base_url, _, model = url.partition("#")
        return cls(base_url=base_url.rstrip("/"), model=model, timeout_s=timeout_s, retries=retries, key=key)

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise PolicyError(f"address of model {self.model!r}: expected http(s)://host[:port]/path")
        if parts.username or parts.password:
            raise PolicyError(f"address of model {self.model!r} holds a user or password. Put the key into {self.key}")
        if not self.model:
            raise PolicyError(f"{self.base_url} names no model. Write the address as {self.base_url}#model")

    @property
    def address(self) -> str:
        """Server and model."""
        return f"{self.base_url}#{self.model}"

    @property
    def hash(self) -> str:
        """Digest of the address. It is the policy version, because the weights are unknown."""
        return hashlib.sha256(self.address.encode()).hexdigest()[:16]

    def client(self) -> AsyncOpenAI:
        """Create a client that the caller must close. Raises `PolicyError` if the key is not a valid header."""
        key = self._secret()
        if not (key.isascii() and key.isprintable()):
            raise PolicyError(f"{self.key} holds characters that a key cannot have. Set it again")
        return AsyncOpenAI(
            api_key=key or "none", base_url=self.base_url, timeout=self.timeout_s, max_retries=self.retries
        )

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncOpenAI]:
        """Open a client for the running event loop."""
        async with self.client() as client:
            yield client

    async def send(self, request: Awaitable[T], part: str) -> T:
        """Await a response. Its first choice must have this part and a finish reason.

        The raised error has no cause, because the server's text may contain the key. Raises `PolicyError` if every
        request would fail, `RequestFailed` if only this one would, else `TimeoutError` or `ConnectionError`.
        """
        failure: Exception = RequestFailed(
            f"{self.address} does not answer in the format of the OpenAI API. Check the address"
        )
        try:
            response = await request
            (first, *_) = getattr(response, "choices", None) or [None]  # a body that is not JSON is a string
            if {part, "finish_reason"} <= getattr(first, "model_fields_set", set()):
                return response
        except APITimeoutError:
            failure = TimeoutError(f"{self.address} gave no answer in {self.retries + 1} tries of {self.timeout_s} s")
        except APIConnectionError:
            failure = ConnectionError(f"{self.address} cannot be reached, tried {self.retries + 1} times")
        except APIStatusError as error:
            failure = self._status_error(error)
        except (APIError, JSONDecodeError):
            pass
        raise failure

    def redact(self, text: str) -> str:
        """Remove the key from a server's text."""
        key = self._secret()
        return text.replace(key, "[key]") if key else text

    def _status_error(self, error: APIStatusError) -> Exception:
        status = error.status_code
        if status in _REFUSED:
            return PolicyError(
                f"{self.address} refuses the key in {self.key} (HTTP {status}). Set one that may use this model"
            )
        if status in _BUSY or status >= 500:
            wait_s = error.response.headers.get("retry-after", "")[:40]
            tried = f"asks to retry after {wait_s} s" if wait_s else f"tried {self.retries + 1} times"
            return ConnectionError(f"{self.address} answered HTTP {status}, {tried}")
        kind = PolicyError if status == _NOT_FOUND else RequestFailed
        return kind(f"{self.address} refuses the request (HTTP {status}): {self.redact(error.message)[:300]}")

    def _secret(self) -> str:
        return os.environ.get(self.key, "").strip()
