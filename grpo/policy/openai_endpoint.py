"""Endpoint of an OpenAI-compatible server: address, client, and the errors of its requests.

The API key is read from the environment when a client is created. It is never in an attribute, log or error message.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel

from grpo.errors import PolicyError, install_command
from grpo.http_client import BoundedClient, ReplyRefused

try:
    from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, AsyncOpenAI
except ModuleNotFoundError as error:
    raise PolicyError(f"package openai is not installed. Call {install_command('openai')}") from error

A = TypeVar("A", bound=BaseModel)

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
    """Longest silence of the server in one attempt, in seconds."""
    reply_s: float | None = None
    """Longest wait for the whole reply of one attempt, in seconds. None is `timeout_s`."""
    retries: int = 2
    """Retries after a connection error, a timeout, or HTTP 429 or 5xx."""
    key: str = KEY
    """Environment variable of the API key."""

    @classmethod
    def from_address(cls, url: str, **settings: Any) -> OpenAIEndpoint:
        """Parse an address with a model, e.g. `https://api.openai.com/v1#gpt-4.1`. `settings` are the other fields."""
        base_url, _, model = url.partition("#")
        return cls(base_url=base_url.rstrip("/"), model=model, **settings)

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
        bounded: Any = BoundedClient(reply_s=self.reply_s or self.timeout_s)  # of httpx, also where openai has httpx2
        return AsyncOpenAI(
            api_key=key or "none",
            base_url=self.base_url,
            timeout=self.timeout_s,
            max_retries=self.retries,
            http_client=bounded,
        )

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncOpenAI]:
        """Open a client for the running event loop."""
        async with self.client() as client:
            yield client

    async def send(self, request: Awaitable[Any], kind: type[A]) -> A:
        """Await a response and validate it, because the client of OpenAI's package does not.

        The raised error has no cause, because the server's text may contain the key. Raises `PolicyError` if every
        request would fail, `RequestFailed` if only this one would, else `TimeoutError` or `ConnectionError`.
        """
        failure: Exception = RequestFailed(
            f"{self.address} does not answer in the format of the OpenAI API. Check the address"
        )
        try:
            response = await request
            if isinstance(response, BaseModel):  # a body that is not JSON is a string
                return kind.model_validate(response.model_dump(exclude_unset=True, warnings="none"))
        except APITimeoutError:
            failure = TimeoutError(f"{self.address} gave no answer in {self.retries + 1} tries of {self.timeout_s} s")
        except APIConnectionError as error:
            if isinstance(error.__cause__, ReplyRefused):
                failure = RequestFailed(f"{self.address} cannot be used: {error.__cause__}")
            else:
                failure = ConnectionError(f"{self.address} cannot be reached, tried {self.retries + 1} times")
        except APIStatusError as error:
            failure = self._status_error(error)
        except (
            APIError,
            ValueError,
            TypeError,
            RecursionError,
        ):  # also of a text that is not JSON, or nested too deeply
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
        if 300 <= status < 400:
            place = self.redact(error.response.headers.get("location", ""))[:100]
            return PolicyError(
                f"{self.address} redirects to {place!r} (HTTP {status}). A conversation goes only to the server that "
                "the settings name. If you trust the other address, name it instead"
            )
        kind = PolicyError if status == _NOT_FOUND else RequestFailed
        return kind(f"{self.address} refuses the request (HTTP {status}): {self.redact(error.message)[:300]}")

    def _secret(self) -> str:
        return os.environ.get(self.key, "").strip()
