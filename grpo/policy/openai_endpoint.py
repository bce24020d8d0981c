"""A server that speaks OpenAI's protocol: where it is, and what goes wrong on the way there.

The key is read from the environment when a client is made; it stands in no attribute, log or error.
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

from grpo.errors import PolicyError

try:
    from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, AsyncOpenAI
except ModuleNotFoundError as error:
    raise PolicyError("package openai is not installed; pip install 'grpo[openai]'") from error

T = TypeVar("T")

KEY = "OPENAI_API_KEY"
_REFUSED = (401, 403)
_BUSY = (408, 409, 429)
_NOT_FOUND = 404


class RequestFailed(PolicyError):
    """The server gave this one request no answer that can be used; another request may fare better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIEndpoint:
    """A model behind an address; `base_url` ends where `/chat/completions` or `/completions` begins."""

    base_url: str
    model: str
    timeout_s: float = 60.0
    """Seconds that one try may take."""
    retries: int = 2
    """Further tries after a dropped connection, a time-out, or an answer of 429 or 5xx."""
    key: str = KEY
    """Name of the environment variable that holds the key."""

    @classmethod
    def from_address(cls, url: str, *, timeout_s: float = 60.0, retries: int = 2, key: str = KEY) -> OpenAIEndpoint:
        """The server at an address with its model, as `https://api.openai.com/v1#gpt-4.1`."""
        base_url, _, model = url.partition("#")
        return cls(base_url=base_url.rstrip("/"), model=model, timeout_s=timeout_s, retries=retries, key=key)

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise PolicyError(f"address of model {self.model!r}: expected http(s)://host[:port]/path")
        if parts.username or parts.password:
            raise PolicyError(f"address of model {self.model!r} holds a user or password; put the key into {self.key}")
        if not self.model:
            raise PolicyError(f"{self.base_url} names no model; write the address as {self.base_url}#model")

    @property
    def address(self) -> str:
        """Server and model, for messages."""
        return f"{self.base_url}#{self.model}"

    @property
    def hash(self) -> str:
        """Digest of the address: the version of a policy whose weights nobody here has seen."""
        return hashlib.sha256(self.address.encode()).hexdigest()[:16]

    def client(self) -> AsyncOpenAI:
        """A client, to be closed by whoever asks for it. Raises `PolicyError` for a key that no header can hold."""
        key = self._secret()
        if not (key.isascii() and key.isprintable()):
            raise PolicyError(f"{self.key} holds characters that a key cannot have; set it again")
        return AsyncOpenAI(
            api_key=key or "none", base_url=self.base_url, timeout=self.timeout_s, max_retries=self.retries
        )

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncOpenAI]:
        """A client for the running event loop."""
        async with self.client() as client:
            yield client

    async def send(self, request: Awaitable[T], part: str) -> T:
        """The server's answer, whose first choice has this part and a reason why it ended.

        Nothing is chained to what is raised, because the server's words may hold the key. Raises `PolicyError` where
        a second try would fail as well, `RequestFailed` if that holds for this request only, else `TimeoutError` or
        `ConnectionError`.
        """
        failure: Exception = RequestFailed(f"{self.address} does not answer as OpenAI's protocol says; is it right?")
        try:
            answer = await request
            (first, *_) = getattr(answer, "choices", None) or [None]  # what is no JSON comes as text
            if {part, "finish_reason"} <= getattr(first, "model_fields_set", set()):
                return answer
        except APITimeoutError:
            failure = TimeoutError(f"{self.address} gave no answer in {self.retries + 1} tries of {self.timeout_s} s")
        except APIConnectionError:
            failure = ConnectionError(f"{self.address} cannot be reached, tried {self.retries + 1} times")
        except APIStatusError as error:
            failure = self._refusal(error)
        except (APIError, JSONDecodeError):
            pass
        raise failure

    def redact(self, words: str) -> str:
        """The words without the key, should the server have repeated it."""
        key = self._secret()
        return words.replace(key, "[key]") if key else words

    def _refusal(self, error: APIStatusError) -> Exception:
        status = error.status_code
        if status in _REFUSED:
            return PolicyError(
                f"{self.address} refuses the key in {self.key} (HTTP {status}); set one that may use this model"
            )
        if status in _BUSY or status >= 500:
            wait_s = error.response.headers.get("retry-after", "")[:40]
            tried = f"asks to be left alone for {wait_s} s" if wait_s else f"tried {self.retries + 1} times"
            return ConnectionError(f"{self.address} answered HTTP {status}, {tried}")
        kind = PolicyError if status == _NOT_FOUND else RequestFailed
        return kind(f"{self.address} refuses the request (HTTP {status}): {self.redact(error.message)[:300]}")

    def _secret(self) -> str:
        return os.environ.get(self.key, "").strip()
