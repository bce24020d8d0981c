"""JSON Web Tokens of an identity provider as credentials: signature, issuer, audience and expiry are required."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import jwt

from grpo.errors import ConfigError
from grpo.serving.callers import SCOPES, Caller, CallerLimits, sha256

SHARED_SECRET = ("HS256", "HS384", "HS512")
PUBLIC_KEY = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class TokenError(Exception):
    """A token that is not valid, with the reason in words that do not quote it."""


class TokenVerifier:
    """Verification of tokens of one issuer, for one audience.

    The claim `sub` names the caller, `scope` holds its scopes separated by spaces; other scopes are ignored. All callers have
    the same `limits`, counted per subject.
    """

    def __init__(
        self,
        key: str,
        *,
        algorithms: Collection[str],
        issuer: str,
        audience: str,
        limits: CallerLimits | None = None,
        leeway_s: float = 0.0,
    ) -> None: ...

    def caller(self, token: str) -> Caller:
        """The caller that a token names. Raises `TokenError`."""
        raise NotImplementedError


def read_key(*, variable: str | None = None, file: Path | None = None) -> str:
    """Read the secret or public key (PEM) from an environment variable or a file. Raises `ConfigError`."""
    raise NotImplementedError
