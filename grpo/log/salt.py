"""Salt of the serving log, with which the names of users are hashed.

A reader of a copied record cannot find a user by hashing a list of names, because that needs the salt.
"""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path

from grpo.errors import StorageError
from grpo.log.folder import ServedLog
from grpo.log.segments import exclusive, write_private

SALT = "salt"
_BYTES = 32


def read_salt(folder: Path) -> bytes:
    """Read the salt of a log. A log without records gets one if it has none.

    Raises `OSError`, and `StorageError` if the salt is damaged, or if it is missing from a log with records.
    """
    path = folder / SALT
    if not path.exists():
        with exclusive(folder):
            if not path.exists():  # another process may have made it since
                _make(path)
    salt = path.read_bytes()
    if len(salt) != _BYTES:
        raise StorageError(f"{path} has {len(salt)} bytes instead of {_BYTES}. Restore it from a backup")
    return salt


def hash_user(salt: bytes, name: str) -> str:
    """HMAC-SHA256 of a user's name in hexadecimal digits, which turns have in place of the name."""
    return hmac.digest(salt, name.encode(errors="surrogatepass"), "sha256").hex()


def _make(path: Path) -> None:
    if ServedLog(path.parent).snapshot():
        raise StorageError(
            f"{path} is missing. Without it the turns of a user cannot be found when they have to be erased. Restore "
            "the file from a backup, or set `log` to another folder"
        )
    write_private(path, lambda file: file.write(secrets.token_bytes(_BYTES)))
