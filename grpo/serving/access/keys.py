"""API keys: a JSON file of hashes with scopes and limits, changed by the command and read again by a running server.

The file is written atomically under a lock, and only its owner can read it. If others can read it, it is refused. The
secret is shown only once, when a key is created. The file only has its sha256, which is enough because a secret has 256
random bits.
"""

from __future__ import annotations

import hmac
import json
import secrets
import stat
import threading
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo.config.serving import CallerLimits
from grpo.errors import ConfigError
from grpo.serving.access.callers import Caller, Scope, sha256
from grpo.storage.files import write_atomically
from grpo.storage.locks import file_lock

PREFIX = "sk-grpo-"
"""Beginning of every key, by which secret scanners and `masked` recognize it."""
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class APIKey(BaseModel):
    """A key without its secret."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=_NAME)
    """1 to 64 letters, digits, `.`, `_` and `-`."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    scopes: Annotated[frozenset[Scope], Field(min_length=1)]
    limits: CallerLimits = CallerLimits()
    created: datetime


class KeyStore:
    """Keys in a file. If the file changes, the change applies from the next request on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[_Stamp | None, tuple[APIKey, ...]] = (None, ())
        self._lock = threading.Lock()
        self.list()

    def list(self) -> tuple[APIKey, ...]:
        """All keys, sorted by name. Empty if the file does not exist.

        Raises `ConfigError` if the file is damaged, or if anyone but its owner can read it.
        """
        with self._lock:
            stamp = self._stamp()
            if stamp != self._read[0]:
                self._read = (stamp, () if stamp is None else self._load())
            return self._read[1]

    def create(self, name: str, scopes: Collection[str], limits: CallerLimits | None = None) -> str:
        """Create a key and return its secret, which is not kept.

        Raises `ConfigError` if the name is taken or invalid, or if a scope is unknown.
        """
        secret = PREFIX + secrets.token_urlsafe(32)
        try:
            key = APIKey.model_validate(
                {
                    "name": name,
                    "sha256": sha256(secret),
                    "scopes": frozenset(scopes),
                    "limits": limits or CallerLimits(),
                    "created": datetime.now(UTC).replace(microsecond=0),
                }
            )
        except ValidationError as error:
            raise ConfigError(f"key {name!r}: {_faults(error)}") from error
        with file_lock(self._lock_path()):
            keys = self.list()
            if any(other.name == name for other in keys):
                raise ConfigError(f"key {name!r} exists in {self._path}. Choose another name, or revoke it first")
            self._write((*keys, key))
        return secret

    def revoke(self, name: str) -> APIKey:
        """Remove a key. A running server refuses it from the next request on.

        Raises `ConfigError` if the name is unknown.
        """
        with file_lock(self._lock_path()):
            keys = self.list()
            revoked = next((key for key in keys if key.name == name), None)
            if revoked is None:
                names = ", ".join(key.name for key in keys) or "none"
                raise ConfigError(f"key {name!r} does not exist in {self._path}. There are: {names}")
            self._write(tuple(key for key in keys if key is not revoked))
        return revoked

    def caller(self, secret: str) -> Caller | None:
        """Caller of a secret, or None if it is unknown. Compares with every key in constant time."""
        digest, match = sha256(secret), None
        for key in self.list():
            if hmac.compare_digest(key.sha256, digest):
                match = key
        if match is None:
            return None
        return Caller(name=match.name, key_hash=match.sha256, scopes=match.scopes, limits=match.limits)

    def _lock_path(self) -> Path:
        return self._path.with_name(f".{self._path.name}.lock")

    def _stamp(self) -> _Stamp | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"key file {self._path} cannot be read: {error.strerror}") from error
        return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size

    def _load(self) -> tuple[APIKey, ...]:
        try:
            mode = stat.S_IMODE(self._path.stat().st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"key file {self._path} has mode {mode:04o}, others can read it: chmod 600 {self._path}"
                )
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"key file {self._path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"key file {self._path} is damaged: it is not UTF-8. Create the keys again") from error
        try:
            keys = _Keys.model_validate_json(text).keys
        except ValidationError as error:
            raise ConfigError(f"key file {self._path} is damaged: {_faults(error)}. Create the keys again") from error
        for attribute in ("name", "sha256"):
            if len({getattr(key, attribute) for key in keys}) < len(keys):
                raise ConfigError(f"key file {self._path} is damaged: two keys have the same {attribute}")
        return tuple(sorted(keys, key=lambda key: key.name))

    def _write(self, keys: tuple[APIKey, ...]) -> None:
        document = _Keys(keys=tuple(sorted(keys, key=lambda key: key.name))).model_dump(mode="json")
        write_atomically(self._path, json.dumps(document, indent=1) + "\n", mode=0o600)


_Stamp = tuple[int, int, int, int]


class _Keys(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[APIKey, ...]


def _faults(error: ValidationError) -> str:
    """Places and reasons, without the values because these may be secrets."""
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
