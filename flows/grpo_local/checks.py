"""Checks of this machine's servers, ports, databases, folders and artifact store.

A check ends in one of four states:

    ok        usable
    absent    missing, and not needed until a config asks for it
    warning   usable, with a fault or slowness ahead
    problem   a run would fail
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import sqlite3
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel, ConfigDict

from grpo.errors import ConfigError, GRPOError, StorageError, install_command
from grpo.storage.credentials import masked
from grpo.storage.databases import exclusive
from grpo.storage.files import nearest_existing
from grpo.storage.moved import check_not_moved, former_homes
from grpo.storage.moved_stores import present_address
from grpo.storage.schemas import MIGRATION, mlflow_schema, require_newest
from grpo.storage.signing import key_name
from grpo_local.login import CLIENT, PASSWORD, USERNAME, Server, login, login_file
from grpo_local.managed_process import port_is_free
from grpo_local.schemas import EXAMPLE, database_variable, prefect_database, prefect_schema
from grpo_local.server_answers import NAMES, UnusableServer, served_version
from grpo_local.servers import mlflow_service, prefect_service

_FOLDERS = 1000
"""Folders of a home that are looked at."""
_STORE_S = 30.0
"""Longest time in which a store takes an empty object."""
State = Literal["ok", "absent", "warning", "problem"]
PREFECT, MLFLOW = "PREFECT_API_URL", "MLFLOW_TRACKING_URI"


class CheckResult(BaseModel):
    """Outcome of one check."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    area: str
    name: str
    state: State
    detail: str
    remedy: str = ""
    """Instruction, if something is wrong."""
    wrong_input: bool = False
    """True for a wrong setting, False for a fault of a machine or server."""

    def error(self) -> Exception:
        """The error that a run with this problem ends with."""
        message = f"{self.detail}. {self.remedy}"
        if self.wrong_input:
            return ConfigError(message)
        return ConnectionError(message) if self.area == "servers" else StorageError(message)


class DoctorReport(BaseModel):
    """Results of all checks. If the meaning of a field changes, the schema version is raised."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal["2"] = "2"
    checks: tuple[CheckResult, ...]

    @property
    def healthy(self) -> bool:
        """True if a run can start."""
        return all(check.state != "problem" for check in self.checks)


def require(checks: Iterable[CheckResult]) -> None:
    """Raise the error of the first problem."""
    for check in checks:
        if check.state == "problem":
            raise check.error()


def _server_check(name: str, state: State, detail: str, remedy: str = "", *, wrong_input: bool = False) -> CheckResult:
    return CheckResult(area="servers", name=name, state=state, detail=detail, remedy=remedy, wrong_input=wrong_input)


def _store_check(name: str, detail: str, remedy: str = "", *, wrong_input: bool = False) -> CheckResult:
    """Result of a check of the store. It is a problem if there is a remedy."""
    state: State = "problem" if remedy else "ok"
    return CheckResult(area="stores", name=name, state=state, detail=detail, remedy=remedy, wrong_input=wrong_input)


def check_servers(home: Path) -> Iterator[CheckResult]:
    """Check the servers that the environment names, or else the ports for the servers of this machine."""
    yield from check_named_servers()
    faults = {check.name: check for check in check_ports()}
    if PREFECT not in os.environ:
        name, running = "prefect port", None
        if name not in faults:
            running = prefect_service(home).address()
        if running is not None:
            given = login(home, "prefect") if login_file(home, "prefect").exists() else os.environ.get(CLIENT)
            yield _check_prefect(running, given)
        else:
            host = os.environ["PREFECT_SERVER_API_HOST"]
            yield faults.get(name) or _check_port(name, host, setting="PREFECT_SERVER_API_PORT", taken="problem")
    if not _is_server(os.environ[MLFLOW]):
        name, running = "mlflow port", None
        if name not in faults:
            running = mlflow_service(home).address()
        if running is not None:
            of_home = login(home, "mlflow") if login_file(home, "mlflow").exists() else None
            yield _check_mlflow(running, _own_login() or of_home)
        else:
            yield faults.get(name) or _check_port(name, "127.0.0.1", setting="GRPO_MLFLOW_PORT", taken="warning")


def check_named_servers() -> Iterator[CheckResult]:
    """Check the servers that the environment names."""
    if (url := os.environ.get(PREFECT)) is not None:
        yield _check_prefect(url, os.environ.get(CLIENT))
    if _is_server(tracking := os.environ[MLFLOW].rstrip("/")):
        yield _check_mlflow(tracking, _own_login())


def _own_login() -> str | None:
    """Login in the variables of MLflow's clients. It is not validated, because it belongs to another server."""
    user, password = os.environ.get(USERNAME), os.environ.get(PASSWORD)
    return f"{user}:{password}" if user and password else None


def _check_mlflow(url: str, login: str | None) -> CheckResult:
    return _check_server("mlflow", url, setting=MLFLOW, login=login)


def _check_prefect(url: str, login: str | None) -> CheckResult:
    return _check_server("prefect", url, setting=PREFECT, login=login)


def check_ports() -> Iterator[CheckResult]:
    """Port settings that are not port numbers."""
    settings = ("PREFECT_SERVER_API_PORT", "GRPO_MLFLOW_PORT", "GRPO_SERVE_PORT")
    for name, setting in zip(("prefect port", "mlflow port", "serve port"), settings, strict=True):
        text = os.environ[setting]
        if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536):
            detail = f"{setting}={text[:40]!r} is not a port"
            yield _server_check(name, "problem", detail, f"Set {setting} to a number from 1 to 65535", wrong_input=True)


def _is_server(tracking: str) -> bool:
    return tracking.startswith(("http:", "https:"))


def _check_server(package: Server, url: str, *, setting: str, login: str | None) -> CheckResult:
    """Check that a server can be used, and that its version matches the installed package."""
    installed = importlib.metadata.version(package)
    try:
        served = served_version(package, url, setting=setting, login=login)
    except UnusableServer as error:
        return _server_check(package, "problem", error.detail, error.remedy, wrong_input=error.wrong_input)
    if served.split(".")[:2] == installed.split(".")[:2]:
        return _server_check(package, "ok", f"{masked(url)} answers, {served}")
    detail = f"{masked(url)} answers, {served}. Installed here is {installed}"
    return _server_check(package, "warning", detail, f"Install the same version of {package} on both sides")


def _check_port(name: str, host: str, *, setting: str, taken: State) -> CheckResult:
    port = int(os.environ[setting])
    if port_is_free(host, port):
        return _server_check(name, "ok", f"{host}:{port} is free")
    detail = f"{host}:{port} is in use by another program"
    return _server_check(name, taken, detail, f"Set {setting} to a free port", wrong_input=True)


def check_records(home: Path) -> Iterator[CheckResult]:
    """Check the home, and the databases of Prefect and MLflow in it or at the addresses of the environment."""
    checked = check_home(home)
    yield checked
    if checked.state == "problem":
        return  # nothing can be read in a folder of another user
    if PREFECT not in os.environ:
        try:
            uri = prefect_database(home)
        except ConfigError as error:
            detail, _, remedy = str(error).partition(". ")
            yield _store_check("prefect", detail, remedy, wrong_input=True)
        else:
            yield _check_database("prefect", uri, setting=database_variable())
    try:
        check_not_moved(os.environ[MLFLOW])
    except ConfigError as error:
        detail, _, remedy = str(error).partition(". ")
        yield _store_check("mlflow", detail, remedy, wrong_input=True)
    else:
        yield _check_database("mlflow", os.environ[MLFLOW], setting=MLFLOW)


def check_files(home: Path) -> Iterator[CheckResult]:
    """Check the small files of a home that commands read: its key, its logins, and where it and its stores were."""
    if check_home(home).state == "problem":
        return
    readers: dict[str, Callable[[], object]] = {"signing.key": key_name, "moved.json": former_homes}
    readers["stores.json"] = partial(present_address, "")
    readers |= {f"{name}.login": partial(login, home, name) for name in NAMES if login_file(home, name).exists()}
    for name, read in readers.items():
        try:
            read()
        except GRPOError as error:
            detail, _, remedy = str(error).partition(". ")
            yield _store_check(name, detail, remedy or "Restore it from a backup")


def check_home(home: Path) -> CheckResult:
    """Check that the home of all records can be written."""
    return _check_folder("home", home, remedy="Fix the permissions of the folder, or set GRPO_HOME")


def check_folders(home: Path) -> Iterator[CheckResult]:
    """Warn of a folder of the home that this user may not use, because a run that needs it would fail late."""
    if check_home(home).state != "problem" and (closed := _closed_folder(home)) is not None:
        detail, remedy = f"{closed} may not be read and written", "Fix its permissions if runs use it"
        yield CheckResult(area="stores", name="folders", state="warning", detail=detail, remedy=remedy)


def _closed_folder(home: Path) -> Path | None:
    """A folder of the home, or in one of its folders, in which a run could not write. None if there is none."""
    inner = itertools.chain(home.glob("*/"), home.glob("*/*/"))
    return next((folder for folder in itertools.islice(inner, _FOLDERS) if not _is_open(folder)), None)


def _is_open(path: Path) -> bool:
    """True if this user may read and write a file, or read and write in a folder."""
    mode = os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)
    return os.access(path, mode, effective_ids=True)


def check_store(store: str) -> CheckResult:
    """Check that the artifact store can be written."""
    name, remedy = "artifacts", "Set `store` to a folder or address that can be written, and its credentials"
    if not protocol_known(store):
        return _store_check(name, f"{masked(store)} is not an address of a store", remedy, wrong_input=True)
    try:
        file_system, root = fsspec.core.url_to_fs(store)
        if isinstance(file_system, LocalFileSystem):
            return _check_folder(name, Path(root), remedy=remedy)
        _write_within(_STORE_S, file_system, f"{root.rstrip('/')}/.probe-{uuid.uuid4().hex}")
    except Exception as error:  # noqa: BLE001 - any error of a store is the outcome of the check
        return _store_check(name, f"{masked(store)}: {type(error).__name__}: {masked(str(error), known=store)}", remedy)
    return _store_check(name, masked(store))


def _write_within(seconds: float, file_system: AbstractFileSystem, probe: str) -> None:
    """Write and remove an object. Raises `TimeoutError`, because a client of a bucket would try for five minutes."""
    failures: list[Exception] = []

    def write() -> None:
        try:
            file_system.pipe_file(probe, b"")
            file_system.rm_file(probe)
        except Exception as error:  # noqa: BLE001 - it is raised below
            failures.append(error)

    thread = threading.Thread(target=write, name="probe of the store", daemon=True)  # the command may end before it
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"it has not answered within {seconds:g} s")
    for failure in failures:
        raise failure


def _check_folder(name: str, folder: Path, *, remedy: str) -> CheckResult:
    """Write in the folder, or in the nearest existing folder above it."""
    existing = nearest_existing(folder)
    try:
        if not existing.is_dir():
            raise NotADirectoryError(f"{existing} is not a folder")
        with tempfile.TemporaryDirectory(prefix=".probe-", dir=existing) as probe, tempfile.TemporaryFile(dir=probe):
            pass
    except OSError as error:
        detail = f"the {name} {folder}: {error.strerror or error}"
        return _store_check(name, detail, remedy, wrong_input=isinstance(error, NotADirectoryError))
    return _store_check(name, f"{folder}" if existing == folder.resolve() else f"{folder}, made by the first run")


def _check_database(name: str, uri: str, *, setting: str) -> CheckResult:
    """Open the database of a service. Database servers are left to the checks of servers."""
    if _is_server(uri):
        return _store_check(name, f"kept by the server at {masked(uri)}")
    if uri.startswith("sqlite:///"):
        return _check_sqlite(name, Path(uri.removeprefix("sqlite:///")), setting=setting)
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError, SQLAlchemyError

    try:
        engine = create_engine(uri, connect_args={"connect_timeout": 5} if uri.startswith("postgres") else {})
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
        engine.dispose()
    except ModuleNotFoundError as error:
        install = f"Call {install_command('postgres')}" if uri.startswith("postgresql") else "Install it"
        remedy = f"{install}, or set {setting}"
        return _store_check(name, f"{masked(uri)} needs a driver ({error})", remedy, wrong_input=True)
    except (SQLAlchemyError, TypeError, ValueError) as error:
        if isinstance(error, (ArgumentError, NoSuchModuleError)):
            detail = f"{setting}={masked(uri)!r} is not an address of a database or a server"
            mlflow = "http://HOST:PORT of a server, or postgresql://USER:PASSWORD@HOST/NAME"
            remedy = f"Set it to {mlflow if setting == MLFLOW else EXAMPLE} of a database"
            return _store_check(name, detail, remedy, wrong_input=True)
        detail = f"{masked(uri)}: {masked(str(error).strip().splitlines()[0], known=uri)}"
        wrong_input = not isinstance(error, OperationalError)
        return _store_check(
            name, detail, f"Start the database, or set {setting} to one that runs", wrong_input=wrong_input
        )
    return _check_schema(name, uri, masked(uri))


def _check_schema(name: str, uri: str, detail: str) -> CheckResult:
    """Compare the schema of a database with the one of the installed package. `detail` is for a database that fits."""
    try:
        older = (mlflow_schema if name == "mlflow" else prefect_schema)(uri).older
        if older is None:
            return _store_check(name, detail)
        if name == "prefect":  # its server migrates it
            return _store_check(name, older).model_copy(update={"state": "warning", "remedy": MIGRATION})
        with exclusive(uri):  # another process may be migrating it
            require_newest(uri)
    except (ConfigError, ConnectionError) as error:
        detail, _, remedy = str(error).partition(". ")
        return _store_check(name, detail, remedy, wrong_input=isinstance(error, ConfigError))
    return _store_check(name, detail)


def _check_sqlite(name: str, path: Path, *, setting: str) -> CheckResult:
    if not path.exists():
        detail = f"{path}, made by the first run or by `grpo migrate`"
        checked = _check_folder(name, path.parent, remedy=f"Fix the permissions of the folder, or set {setting}")
        return checked if checked.state == "problem" else checked.model_copy(update={"detail": detail})
    if not _is_open(path) or not _is_open(path.parent):
        return _store_check(name, f"{path} or its folder may not be read and written", "Fix the permissions")
    try:
        with closing(sqlite3.connect(path, timeout=5)) as database:
            database.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        is_locked = getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        remedy = (
            "Another program holds the database open. Try again when it has ended"
            if is_locked
            else f"Restore a backup, move the file away and call `grpo migrate`, or set {setting}"
        )
        return _store_check(name, f"the records of {name} in {path} cannot be used: {error}", remedy)
    return _check_schema(name, f"sqlite:///{path}", str(path))


def protocol_known(store: str) -> bool:
    """True if fsspec can read such an address."""
    protocol = fsspec.core.split_protocol(store)[0]
    return protocol is None or protocol in fsspec.available_protocols()
