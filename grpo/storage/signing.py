"""Signatures of documents in places where others can write: in a model registry, or in an artifact store.

Such a document decides which weights are trained and served and which code is imported. Therefore it is trusted only if
it has an HMAC-SHA256 by a key that the registry and the store do not have:

    GRPO_SIGNING_KEY                 if several machines share a registry or a store
    GRPO_HOME/services/signing.key   otherwise: made on first use, readable only by its owner

A signature does not name the registry, whose address differs between machines. Promotions name the time at which MLflow
made the registered model, so that they hold in one registry only. Versions hold in every registry with the same key.
Two registries that must not believe each other's versions, such as those of a test deployment and of production, need
two keys.

The text of a signed document is `{"document": …, "key": …, "mac": …}`. `key` names the key without giving it away, so
that a document that was signed with another key is distinguished from a document that was changed. The MAC also covers
the kind of the document, so that the signature of a promotion does not hold for a version.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from grpo.errors import ConfigError
from grpo.storage.home import home
from grpo.storage.secret_file import read_secret

KEY = "GRPO_SIGNING_KEY"
"""Variable with the key."""
_SHORTEST = 32
_MOST_CHARACTERS = 100_000
"""Longest text that is parsed, which is the length of MLflow's longest tag."""

Fault = Literal["is not signed", "was changed after it was signed", "was signed with another key"]


class Unverified(Exception):
    """The signature of a document does not hold. The caller knows what the document is, and names the remedy."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault: Fault = fault


def key_file() -> Path:
    """File of the key of this home."""
    return home() / "services" / "signing.key"


def key_name() -> str:
    """Name of the key of this process, which does not give the key away. Empty if there is no key."""
    key = _key(make=False)
    return "" if key is None else _name(key)


def sign(kind: str, document: Mapping[str, Any]) -> str:
    """Text of a document with its signature by the key of this process, which is made if there is none.

    Raises `ConfigError` if the key is invalid, and `StorageError` if the home may not be written.
    """
    key = _key(make=True)
    assert key is not None
    return canonical({"document": document, "key": _name(key), "mac": _mac(key, kind, document)})


def verify(kind: str, text: str | None, *, longest: int = _MOST_CHARACTERS) -> dict[str, Any]:
    """The document in a text that `sign` wrote for the same kind. Raises `Unverified`, and `ConfigError` as `sign`."""
    signed = _parsed(text, longest)
    if signed is None:
        raise Unverified("is not signed")
    key = _key(make=False)
    if key is None or signed["key"] != _name(key):
        raise Unverified("was signed with another key")
    document: dict[str, Any] = signed["document"]
    try:
        expected = _mac(key, kind, document)
    except RecursionError:  # the parser accepts deeper nesting than the writer
        raise Unverified("was changed after it was signed") from None
    if not hmac.compare_digest(signed["mac"].encode(errors="replace"), expected.encode()):
        raise Unverified("was changed after it was signed")
    return document


def canonical(document: Any) -> str:
    """JSON with one spelling for equal documents: keys are sorted, and there are no blanks.

    Characters of other scripts are not escaped, because an escape takes six characters and a registry bounds the length
    of a text.
    """
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _parsed(text: str | None, longest: int) -> dict[str, Any] | None:
    """Signed document that is not verified yet, or None if the text is not a signed document."""
    if text is None or len(text) > longest:
        return None
    try:
        signed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(signed, dict) or signed.keys() != {"document", "key", "mac"}:
        return None
    if not isinstance(signed["document"], dict):
        return None
    return signed if isinstance(signed["key"], str) and isinstance(signed["mac"], str) else None


def _mac(key: bytes, kind: str, document: Mapping[str, Any]) -> str:
    return hmac.new(
        key, f"grpo {kind}\n{canonical(document)}".encode(errors="surrogatepass"), hashlib.sha256
    ).hexdigest()


def _name(key: bytes) -> str:
    """Name of a key, from which the key cannot be computed."""
    return hmac.new(key, b"grpo name of the key", hashlib.sha256).hexdigest()[:16]


def _key(*, make: bool) -> bytes | None:
    """Key of the environment, or else the key of the home. None if there is none and `make` is False.

    If several processes make the key at once, all get the same key.
    """
    if given := os.environ.get(KEY, "").strip():  # a key that was read from a file ends with a line end
        return _validated(given, place=KEY)
    file = key_file()
    if not make and not file.exists():
        return None
    return _validated(read_secret(file, lambda: secrets.token_hex(32)), place=str(file))


def _validated(text: str, *, place: str) -> bytes:
    """The key, if it is long enough. Otherwise raise `ConfigError`, which does not repeat the key."""
    if len(text) < _SHORTEST:
        raise ConfigError(
            f"the signing key in {place} has {len(text)} characters, and needs at least {_SHORTEST}. Restore it from a "
            "backup, or set one that `openssl rand -hex 32` prints: what was signed with another key is refused then"
        )
    return text.encode(errors="surrogateescape")
