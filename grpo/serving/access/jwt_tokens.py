"""JSON Web Tokens of an issuer as credentials, which need a signature, issuer, audience, expiry and subject."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jwt

from grpo.config.serving import CallerLimits, TokenSettings
from grpo.errors import ConfigError
from grpo.serving.access.callers import SCOPES, Caller, sha256

SHARED_SECRET = frozenset({"HS256", "HS384", "HS512"})
PUBLIC_KEY = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
_SECRET_BYTES = 32
"""RFC 7518, section 3.2: a shared secret must be at least as long as the hash of HS256."""
_SECRET_CHARACTERS = 10
"""Fewest different bytes in a shared secret. 32 random bytes have 20 or more, but a repeated word has few."""
_RSA_BITS = 2048
"""RFC 7518, section 3.3."""
_LAST_TIME = 253_402_300_800
"""The year 10000 as a Unix time. A later time is a mistake, e.g. in milliseconds."""
_REQUIRED = ("exp", "iss", "aud", "sub")
_TIMES = ("exp", "nbf", "iat")
_REASONS: dict[type[jwt.PyJWTError], str] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.InvalidAlgorithmError: "its algorithm is not accepted",
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.InvalidIssuerError: "its issuer is not accepted",
    jwt.InvalidAudienceError: "it is for another audience",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.MissingRequiredClaimError: "a claim is missing. It needs exp, iss, aud and sub",
}


class TokenError(Exception):
    """Invalid token, with a reason that does not quote the token."""


class TokenVerifier:
    """Verification of the tokens of one issuer for one audience.

    The claim `sub` names the caller, and `scope` holds its scopes separated by spaces. Scopes of other services are
    ignored. All callers have the same `limits`, which are counted for each subject. Raises `ConfigError` if algorithms
    are unknown, if they mix shared secrets with public keys (because a public key would then pass as a secret), or if
    the key cannot be used.
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
    ) -> None:
        chosen = frozenset(algorithms)
        if not chosen or not (chosen <= SHARED_SECRET or chosen <= PUBLIC_KEY):
            raise ConfigError(
                f"algorithms {sorted(chosen)} of tokens: name some of {', '.join(sorted(PUBLIC_KEY))} for a public "
                f"key, or of {', '.join(sorted(SHARED_SECRET))} for a shared secret"
            )
        if not issuer or not audience:
            raise ConfigError("tokens need an issuer and an audience, the values of their claims `iss` and `aud`")
        if chosen <= SHARED_SECRET and len(key.encode()) < _SECRET_BYTES:
            raise ConfigError(f"the secret of tokens has {len(key.encode())} bytes. Take at least {_SECRET_BYTES}")
        if chosen <= SHARED_SECRET and len({*key.encode()}) < _SECRET_CHARACTERS:
            raise ConfigError(
                f"the secret of tokens has {len({*key.encode()})} different bytes and can be guessed. "
                "Take random ones, as `openssl rand -base64 48` makes them"
            )
        self._algorithms = sorted(chosen)
        self._key = key
        for algorithm in self._algorithms:
            _check_key(key, algorithm)
        self._issuer, self._audience, self._leeway_s = issuer, audience, leeway_s
        self._limits = limits or CallerLimits()

    def caller(self, token: str) -> Caller:
        """Caller that a token names. Raises `TokenError` if the token is not valid."""
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                self._key,
                algorithms=self._algorithms,
                issuer=self._issuer,
                audience=self._audience,
                leeway=self._leeway_s,
                options={"require": list(_REQUIRED)},
            )
        except jwt.PyJWTError as error:
            raise TokenError(_REASONS.get(type(error), "it is malformed")) from error
        except (ValueError, OverflowError, RecursionError) as error:  # e.g. numbers that no clock has
            raise TokenError("it is malformed") from error
        for name in _TIMES:
            if name in claims and not _is_time(claims[name]):
                raise TokenError(f"its claim `{name}` is not a Unix time in seconds")
        subject, scope = claims["sub"], claims.get("scope", "")
        if not subject or not isinstance(scope, str):
            raise TokenError("its claim `sub` is empty, or `scope` is not a string")
        words = scope.split()
        return Caller(
            name=subject,
            key_hash=sha256(f"{self._issuer}\0{subject}"),
            scopes=frozenset(known for known in SCOPES if known in words),
            limits=self._limits,
        )


def make_token_verifier(settings: TokenSettings) -> TokenVerifier:
    """Create the verifier from a server's settings. Raises `ConfigError` when `TokenVerifier` and `read_key` do."""
    return TokenVerifier(
        read_key(settings),
        algorithms=settings.algorithms,
        issuer=settings.issuer,
        audience=settings.audience,
        limits=settings.limits,
    )


def read_key(settings: TokenSettings) -> str:
    """Read the shared secret or public key (PEM) from an environment variable or a file. Raises `ConfigError`."""
    if settings.key_file is None:
        variable = settings.key_variable or ""
        place, text = f"environment variable {variable}", os.environ.get(variable, "")
    else:
        place = f"file {settings.key_file}"
        try:
            text = Path(settings.key_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"the key of tokens in {place} cannot be read: {reason}") from error
    if not text.strip():
        raise ConfigError(f"the key of tokens in {place} is empty. Put the secret or the public key there")
    return text.strip()


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LAST_TIME


def _check_key(key: str, algorithm: str) -> None:
    try:
        prepared = jwt.get_algorithm_by_name(algorithm).prepare_key(key)
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise ConfigError(f"the key of tokens does not fit {algorithm}. A public key is a PEM file") from error
    bits = getattr(prepared, "key_size", _RSA_BITS)
    if algorithm.startswith(("RS", "PS")) and bits < _RSA_BITS:
        raise ConfigError(f"the RSA key of tokens has {bits} bits and can be factored. Take at least {_RSA_BITS}")
