"""JSON Web Tokens: what is required of them, and which keys and algorithms are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pydantic import ValidationError

from grpo.config.serving import CallerLimits, TokenSettings
from grpo.errors import ConfigError
from grpo.serving.access.jwt_tokens import TokenError, TokenVerifier, make_token_verifier, read_key

SECRET = "0123456789abcdef0123456789abcdef"
PRIVATE = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SMALL = (
    rsa.generate_private_key(public_exponent=65537, key_size=1024)
    .public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    .decode()
)
PUBLIC = (
    PRIVATE.public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    .decode()
)


def _claims(**changes: Any) -> dict[str, Any]:
    claims = {
        "sub": "ann",
        "iss": "https://id",
        "aud": "desk",
        "exp": time.time() + 60,
        "scope": "openid chat",
        **changes,
    }
    return {name: value for name, value in claims.items() if value is not None}


def _shared(**changes: Any) -> TokenVerifier:
    return TokenVerifier(SECRET, **{"algorithms": ["HS256"], "issuer": "https://id", "audience": "desk", **changes})


def _public() -> TokenVerifier:
    return TokenVerifier(PUBLIC, algorithms=["RS256"], issuer="https://id", audience="desk")


def _by_hand(header: dict[str, Any], claims: dict[str, Any], key: bytes) -> str:
    """A token with an HMAC of any key, as an attacker makes it."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)]
    signature = hmac.digest(key, b".".join(parts), hashlib.sha256) if key else b""
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def test_a_token_names_its_caller():
    """Subject and known scopes of the token, limits of the verifier; another issuer's subject is another caller."""
    limits = CallerLimits(parallel=3)
    caller = _shared(limits=limits).caller(jwt.encode(_claims(), SECRET, algorithm="HS256"))
    assert (caller.name, caller.scopes, caller.limits) == ("ann", {"chat"}, limits)
    assert caller.key_hash == hashlib.sha256(b"https://id\0ann").hexdigest()
    other = _shared(issuer="https://other").caller(jwt.encode(_claims(iss="https://other"), SECRET, algorithm="HS256"))
    assert other.key_hash != caller.key_hash
    assert _public().caller(jwt.encode(_claims(scope=None), PRIVATE, algorithm="RS256")).scopes == frozenset()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": 1}, "it has expired"),
        ({"exp": "9" * 20}, "`exp` is not a Unix time"),
        ({"exp": None}, "a claim is missing"),
        ({"exp": "soon"}, "it is malformed"),
        ({"exp": float("inf")}, "it is malformed"),
        ({"nbf": 32503680000}, "it is not valid yet"),
        ({"iss": "https://evil"}, "its issuer is not accepted"),
        ({"iss": None}, "a claim is missing"),
        ({"aud": "other"}, "it is for another audience"),
        ({"aud": None}, "a claim is missing"),
        ({"sub": None}, "a claim is missing"),
        ({"exp": 10**400}, "`exp` is not a Unix time"),
        ({"exp": int(time.time() + 60) * 1000}, "`exp` is not a Unix time"),
        ({"exp": "2000000000"}, "`exp` is not a Unix time"),
        ({"exp": float("nan")}, "it is malformed"),
        ({"nbf": True}, "`nbf` is not a Unix time"),
        ({"nbf": -(10**400)}, "`nbf` is not a Unix time"),
        ({"iat": -1}, "`iat` is not a Unix time"),
        ({"sub": ""}, "`sub` is empty"),
        ({"sub": 7}, "it is malformed"),
        ({"scope": ["chat"]}, "`scope` is not a string"),
    ],
)
def test_a_token_with_a_wrong_claim_is_refused(changes: dict[str, Any], reason: str):
    """The reason does not quote the token."""
    with pytest.raises(TokenError, match=reason):
        _shared().caller(_by_hand({"alg": "HS256", "typ": "JWT"}, _claims(**changes), SECRET.encode()))


def test_clocks_may_differ_by_the_leeway():
    """The token expired 20 seconds ago by this clock."""
    token = jwt.encode(_claims(exp=time.time() - 20), SECRET, algorithm="HS256")
    assert _shared(leeway_s=3600.0).caller(token).name == "ann"
    with pytest.raises(TokenError, match="expired"):
        _shared().caller(token)


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, ["HS256"], "HS512"])
def test_a_token_cannot_choose_its_algorithm(algorithm: object):
    """None, with an empty signature, or one that is not listed."""
    with pytest.raises(TokenError):
        _shared().caller(_by_hand({"alg": algorithm, "typ": "JWT"}, _claims(), b""))
    with pytest.raises(TokenError):
        _shared().caller(_by_hand({"alg": algorithm, "typ": "JWT"}, _claims(), SECRET.encode()))


def test_a_public_key_is_not_a_shared_secret():
    """The confusion of algorithms: an HMAC with the published key."""
    with pytest.raises(TokenError, match="its algorithm is not accepted"):
        _public().caller(_by_hand({"alg": "HS256", "typ": "JWT"}, _claims(), PUBLIC.encode()))


def test_a_changed_token_is_refused():
    """In each of its parts."""
    token = jwt.encode(_claims(), SECRET, algorithm="HS256")
    header, claims, signature = token.split(".")
    other = jwt.encode(_claims(sub="bob"), "x" * 32, algorithm="HS256").split(".")
    for changed in (f"{header}.{other[1]}.{signature}", f"{header}.{claims}.{other[2]}", f"{header}.{claims}."):
        with pytest.raises(TokenError, match="its signature is wrong"):
            _shared().caller(changed)


@pytest.mark.parametrize("token", ["", "..", "a.b.c", "é.é.é", "\x00.\x00.\x00", "W1tb.W1tb.W1tb", "W" * 60_000 + ".."])
def test_a_malformed_token_is_refused(token: str):
    """Also deeply nested JSON and bytes that are not base64."""
    with pytest.raises(TokenError):
        _shared().caller(token)


def test_deeply_nested_json_is_refused():
    """40,000 brackets in the header."""
    header = base64.urlsafe_b64encode(b"[" * 40_000).decode().rstrip("=")
    with pytest.raises(TokenError, match="it is malformed"):
        _shared().caller(f"{header}.{header}.{header}")


@pytest.mark.parametrize(
    ("key", "changes", "reason"),
    [
        (SECRET, {"algorithms": []}, r"algorithms \[\] of tokens: name some of"),
        (SECRET, {"algorithms": ["none"]}, "algorithms"),
        (SECRET, {"algorithms": ["HS256", "RS256"]}, "for a shared secret"),
        (SECRET[:31], {}, "has 31 bytes. Take at least 32"),
        ("a" * 32, {}, "has 1 different bytes and can be guessed"),
        ("secret" * 10, {}, "has 5 different bytes and can be guessed"),
        (SMALL, {"algorithms": ["RS256"]}, "RSA key of tokens has 1024 bits and can be factored. Take at least 2048"),
        (SMALL, {"algorithms": ["PS512"]}, "RSA key of tokens has 1024 bits"),
        (PUBLIC, {}, "does not fit HS256"),
        (SECRET, {"algorithms": ["RS256"]}, "does not fit RS256. A public key is a PEM file"),
        (PUBLIC, {"algorithms": ["ES256"]}, "does not fit ES256"),
        (SECRET, {"issuer": ""}, "need an issuer and an audience"),
        (SECRET, {"audience": ""}, "need an issuer and an audience"),
    ],
)
def test_an_unsafe_verifier_is_refused_at_its_start(key: str, changes: dict[str, Any], reason: str):
    """The message does not hold the key."""
    with pytest.raises(ConfigError, match=reason) as caught:
        TokenVerifier(key, **{"algorithms": ["HS256"], "issuer": "i", "audience": "a", **changes})
    assert key not in str(caught.value)


TOKENS: dict[str, Any] = {
    "issuer": "https://id", "audience": "desk", "algorithms": ["HS256"], "key_variable": "DESK_JWT"
}  # fmt: skip


@pytest.mark.parametrize("absent", TOKENS)
def test_a_server_takes_tokens_with_all_settings_or_none(monkeypatch: pytest.MonkeyPatch, absent: str):
    """One that is missing is an error, and not a server that takes any issuer."""
    monkeypatch.setenv("DESK_JWT", SECRET)
    verifier = make_token_verifier(TokenSettings(**TOKENS, limits={"parallel": 3}))
    caller = verifier.caller(jwt.encode(_claims(), SECRET, algorithm="HS256"))
    assert (caller.name, caller.limits) == ("ann", CallerLimits(parallel=3))
    with pytest.raises(ValidationError):
        TokenSettings(**{name: value for name, value in TOKENS.items() if name != absent})
    with pytest.raises(ValidationError):
        TokenSettings(**{**TOKENS, absent: type(TOKENS[absent])()})


def test_a_key_comes_from_a_variable_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From one of the two, and not an empty one."""
    monkeypatch.setenv("DESK_JWT", f"{SECRET}\n")
    (tmp_path / "key.pem").write_text(PUBLIC)
    issuer = {name: value for name, value in TOKENS.items() if name != "key_variable"}
    assert read_key(TokenSettings(**TOKENS)) == SECRET
    assert read_key(TokenSettings(**issuer, key_file=str(tmp_path / "key.pem"))) == PUBLIC.strip()
    with pytest.raises(ValidationError, match="Name one of the two"):
        TokenSettings(**TOKENS, key_file=str(tmp_path / "key.pem"))
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for given, reason in (
        ({"key_variable": "NO_SUCH"}, "environment variable NO_SUCH is empty"),
        ({"key_file": str(tmp_path / "empty")}, "empty is empty"),
        ({"key_file": str(tmp_path / "none")}, "none cannot be read: No such file"),
        ({"key_file": str(tmp_path / "binary")}, "binary cannot be read: it is not UTF-8"),
    ):
        with pytest.raises(ConfigError, match=reason):
            read_key(TokenSettings(**issuer, **given))
