"""A PostgreSQL cluster of its own for each session of tests: loopback, a free port, thrown away afterwards."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
import pytest

_PACKAGES = Path("/usr/lib/postgresql")
_VOLATILE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200")
"""The data are thrown away, so nothing waits for the disk."""


class Cluster:
    """A running server; each service gets a database of its own."""

    def __init__(self, port: int, binaries: Path) -> None:
        self.port = port
        self._binaries = binaries

    def database(self, name: str, *, driver: str = "postgresql") -> str:
        """Create an empty database; returns its URL."""
        connection = psycopg2.connect(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres")
        connection.autocommit = True  # CREATE DATABASE runs outside transactions
        with connection.cursor() as cursor:
            cursor.execute(f'CREATE DATABASE "{name}"')
        connection.close()
        return f"{driver}://postgres@127.0.0.1:{self.port}/{name}"

    def restore(self, name: str, *, into: str) -> str:
        """Back a database up with pg_dump, and read it back into an empty one as the manual tells; returns its URL."""
        url, host = self.database(into), ("-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres")
        dump = subprocess.run([self._binaries / "pg_dump", *host, name], check=True, capture_output=True).stdout
        psql = [self._binaries / "psql", *host, "-v", "ON_ERROR_STOP=1", "-q", into]
        subprocess.run(psql, input=dump, check=True, capture_output=True)
        return url

    def query(self, database: str, statement: str) -> list[tuple[object, ...]]:
        """Rows of a statement."""
        connection = psycopg2.connect(host="127.0.0.1", port=self.port, user="postgres", dbname=database)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall()
        finally:
            connection.close()


@contextmanager
def postgres() -> Iterator[Cluster]:
    """Serve PostgreSQL while the block runs; skips the test where Debian's package `postgresql` is not installed.

    PostgreSQL does not run as root: there it runs as the user whom the package brings.
    """
    binaries = sorted(_PACKAGES.glob("*/bin"), key=lambda folder: int(folder.parent.name))
    if not binaries:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    user = "postgres" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="grpo-postgres-"))  # short: the path of a socket has at most 107 characters
    if user:
        shutil.chown(folder, user)
    try:
        data = folder / "data"
        _run(binaries[-1] / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", user=user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        settings = " ".join(f"-c {one}" for one in (*_VOLATILE, f"unix_socket_directories={folder}"))
        options = f"-h 127.0.0.1 -p {port} {settings}"
        control = (binaries[-1] / "pg_ctl", "-D", data, "-w", "-t", "120")
        _run(*control, "-l", folder / "log", "-o", options, "start", user=user)
        try:
            yield Cluster(port, binaries[-1])
        finally:
            _run(*control, "-m", "immediate", "stop", user=user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(*command: object, user: str | None) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        user=user,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if "start" not in command else subprocess.DEVNULL,  # the server keeps the pipe open
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
