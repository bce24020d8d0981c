"""Logins of the servers of a home. Each is generated once, and kept in a file that only its owner may read."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Literal

from grpo.errors import ConfigError
from grpo.storage.secret_file import read_secret

Server = Literal["prefect", "mlflow"]
SERVER, CLIENT = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
"""Variables of the login USER:PASSWORD, for Prefect's server and its clients."""
USERNAME, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
"""Variables of the login, for MLflow's server and its clients."""
ORIGINS = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"
"""Variable that lists the addresses of Prefect's server."""
HOSTS = "MLFLOW_SERVER_ALLOWED_HOSTS"
"""Variable that lists the addresses of MLflow's server, as HOST:PORT."""
LOGIN_REMEDIES: dict[Server, str] = {
    "prefect": f'Set {CLIENT}. If it is the server of this home, call eval "$(grpo env)"',
    "mlflow": f'Set {USERNAME} and {PASSWORD}. If it is the server of this home, call eval "$(grpo env)"',
}
"""Instruction for a client that the server refuses."""
LOGIN_VARIABLES: dict[Server, str] = {"prefect": SERVER, "mlflow": f"{USERNAME} and {PASSWORD}"}
"""Variables by which a user sets the login of a server of this machine."""
_USABLE = re.compile(r"[!-9;-~]+:[!-~]+")
"""Printable ASCII without blanks, because other characters do not survive in a header."""
_SHORTEST = 12
"""A shorter login can be guessed."""


def login_file(home: Path, server: Server) -> Path:
    """File that holds the login, as one line `grpo:SECRET`."""
    return home / "services" / f"{server}.login"


def login(home: Path, server: Server) -> str:
    """Login of a server of this home: the one in the environment, else the one in its file, else a new one.

    Concurrent processes get the same login. Raises `ConfigError` if the login is invalid, `StorageError` if the home
    cannot be written.
    """
    if (given := given_login(server)) is not None:
        return given
    file = login_file(home, server)
    return validate_login(read_secret(file, lambda: f"grpo:{secrets.token_urlsafe(32)}"), place=str(file))


def given_login(server: Server) -> str | None:
    """Login that the user has set in the environment, or None. Raises `ConfigError` if it is invalid."""
    if server == "prefect":
        given = os.environ.get(SERVER)
    else:
        user, password = os.environ.get(USERNAME), os.environ.get(PASSWORD)
        given = f"{user or ''}:{password or ''}" if user or password else None
        if given is not None and (not user or not password or ":" in user):
            raise ConfigError(
                f"{USERNAME} and {PASSWORD} are one login. Set both or neither, and a user name without a colon"
            )
    return validate_login(given, place=LOGIN_VARIABLES[server]) if given else None


def login_variables(home: Path, server: Server) -> dict[str, str]:
    """Variables that give a server of this home, and its clients, their login."""
    text = login(home, server)
    if server == "prefect":
        return {SERVER: text, CLIENT: text}
    user, _, password = text.partition(":")
    return {USERNAME: user, PASSWORD: password}


def login_place(home: Path, server: Server) -> str:
    """Place of the login: its file, or the variables in which the user has set another one."""
    file = login_file(home, server)
    own = file.exists() and login(home, server) == file.read_text(encoding="utf-8").strip()
    return str(file) if own else LOGIN_VARIABLES[server]


def password_hint(home: Path, server: Server) -> str:
    """Place of the password of a server's page. The password is not shown, because the terminal would keep it."""
    place = login_place(home, server)
    if server == "prefect":
        return (
            f"Prefect's page asks for a password: the whole content of {place}. Until it is given, the page shows "
            "no runs"
        )
    if place == LOGIN_VARIABLES[server]:
        return f"MLflow's page asks for the user name and the password of {place}"
    return f"MLflow's page asks for a user name and a password: {place} has both, with a colon between them"


def validate_login(text: str, *, place: str) -> str:
    """The login, if it is valid. Raises `ConfigError` otherwise, without repeating the login."""
    if len(text) < _SHORTEST or _USABLE.fullmatch(text) is None:
        short = len(text) < _SHORTEST
        fault = (
            f"has only {len(text)} characters"
            if short
            else "has no colon, or has a blank or a character outside of ASCII"
        )
        raise ConfigError(
            f"the login in {place} {fault}. Set USER:PASSWORD of at least {_SHORTEST} printable ASCII characters, or "
            "remove it, so that a new one is generated"
        )
    return text
