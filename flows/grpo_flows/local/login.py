"""Login of the Prefect server of a home: generated once, in a file that only its owner may read."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from grpo.errors import ConfigError
from grpo.storage.files import storage_errors, write_atomically
from grpo.storage.locks import file_lock

SERVER, CLIENT = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
"""Variables of the login, for Prefect's server and its clients."""
ORIGINS = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"
"""Variable that lists the addresses of Prefect's server."""
_USABLE = re.compile(r"[!-~]{12,}")
"""Printable ASCII without blanks: other characters do not survive a header, and a shorter login can be guessed."""


def login_file(home: Path) -> Path:
    """File that holds the login, as one line `grpo:SECRET`."""
    return home / "services" / "prefect.login"


def login(home: Path) -> str:
    """Login of the server of this home: PREFECT_SERVER_API_AUTH_STRING, else that of its file, else a new one.

    Concurrent processes get the same login. Raises `ConfigError` for an invalid login, `StorageError` where the home
    may not be written.
    """
    if given := os.environ.get(SERVER):
        return validate_login(given, place=SERVER)
    file = login_file(home)
    with storage_errors(str(file)), file_lock(file.with_suffix(".lock")):
        if not file.exists():
            write_atomically(file, f"grpo:{secrets.token_urlsafe(32)}\n", mode=0o600)
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
        return validate_login(file.read_text(encoding="utf-8").strip(), place=str(file))


def password_hint(home: Path) -> str:
    """Place of the password of Prefect's page; the password itself would stay in the terminal's history."""
    file = login_file(home)
    place = file if file.exists() and login(home) == file.read_text(encoding="utf-8").strip() else SERVER
    return f"Prefect's page asks for a password: the whole content of {place}"


def validate_login(text: str, *, place: str) -> str:
    """The login, if it is valid; else raise `ConfigError`, which does not repeat it."""
    if _USABLE.fullmatch(text) is None:
        raise ConfigError(
            f"the login in {place} has {len(text)} characters or one that a header cannot hold; set USER:PASSWORD of "
            "at least 12 printable ASCII characters, or remove it and a new one is generated"
        )
    return text
