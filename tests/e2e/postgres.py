"""A PostgreSQL cluster of its own for each session of tests: loopback, a free port, thrown away afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
import pytest

from tests.ports import own_port

_PACKAGES = Path("/usr/lib/postgresql")
_VOLATILE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200")
"""The data are thrown away, so nothing waits for the disk."""
_DURABLE = ("fsync=off", "max_connections=200")
"""The kernel keeps what a killed server has written, so commits outlive it without `fsync`."""


class Cluster:
    """A running server; each service gets a database of its own."""

    def __init__(self, port: int, binaries: Path, control: Callable[..., None]) -> None:
        self.port = port
        self._binaries = binaries
        self._control = control

    def start(self) -> None:
        """Start the server, which is done by `postgres()` first, and wait until it answers."""
        self._control("start")

    def stop(self) -> None:
        """Stop the server as a crash would: connections break, and its log is replayed at the next start."""
        self._control("-m", "immediate", "stop")

    def database(self, name: str, *, driver: str = "postgresql") -> str:
        """Create an empty database; returns its URL."""
        self.execute(f'CREATE DATABASE "{name}"')
        return f"{driver}://postgres@127.0.0.1:{self.port}/{name}"

    def restore(self, name: str, *, into: str) -> str:
        """Back a database up with pg_dump, and read it back into an empty one as the manual tells; returns its URL."""
        url, host = self.database(into), ("-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres")
        dump = subprocess.run([self._binaries / "pg_dump", *host, name], check=True, capture_output=True).stdout
        psql = [self._binaries / "psql", *host, "-v", "ON_ERROR_STOP=1", "-q", into]
        subprocess.run(psql, input=dump, check=True, capture_output=True)
        return url

    def execute(self, statement: str) -> None:
        """Execute a statement that runs outside of transactions, such as CREATE DATABASE."""
        connection = psycopg2.connect(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres")
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.close()

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
def postgres(*, durable: bool = False) -> Iterator[Cluster]:
    """Serve PostgreSQL while the block runs; skips the test where Debian's package `postgresql` is not installed.

    `durable`: what was committed is there after `Cluster.stop`, as it is after a crash of a real server.
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
        port = own_port()
        chosen = _DURABLE if durable else _VOLATILE
        settings = " ".join(f"-c {one}" for one in (*chosen, f"unix_socket_directories={folder}"))
        options = f"-h 127.0.0.1 -p {port} {settings}"
        control = (binaries[-1] / "pg_ctl", "-D", data, "-w", "-t", "120", "-l", folder / "log", "-o", options)
        cluster = Cluster(port, binaries[-1], lambda *command: _run(*control, *command, user=user))
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()
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
