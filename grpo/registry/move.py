"""Move of a home's registry into a PostgreSQL database, and of its files to a place that other machines reach.

    files       runs/mlartifacts → s3://BUCKET/mlflow      each is read back, and skipped if the target has it
    rows        runs/mlflow.db → PostgreSQL                all tables in one transaction, compared before it ends
    addresses   file:///…/runs/mlartifacts/grpo/… → mlflow-artifacts:/grpo/…

Versions, aliases, promotions and signatures stay as they are, because no signed tag has an address of MLflow. MLflow's
server resolves `mlflow-artifacts:/` against MLFLOW_ARTIFACTS_DESTINATION, so that clients need no key of the bucket. If
a move is interrupted, repeat it: the database has all rows or none. The old registry stays as a copy, and this home
refuses to open it, because two registries with the same versions would diverge.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fsspec.implementations.local import LocalFileSystem

from grpo import progress
from grpo.errors import ConfigError, SignatureError, StorageError
from grpo.policy.weights.promotion_records import promotion_state
from grpo.policy.weights.registered import fault_of
from grpo.policy.weights.registry_pages import all_models, all_versions
from grpo.storage.credentials import masked
from grpo.storage.databases import exclusive, upgrade_tracking
from grpo.storage.documents import Document
from grpo.storage.files import content_digest, files_below
from grpo.storage.home import home
from grpo.storage.moved import ADDRESSES, ARTIFACTS, FILE, MIGRATE, former_place, moved, note_registry
from grpo.storage.objects import ObjectFolder, open_uri
from grpo.storage.schemas import require_newest

if TYPE_CHECKING:
    from sqlalchemy import Connection, MetaData, Row, Table

SERVED = "mlflow-artifacts:"
_BATCH = 1000
_MADE_BY_MLFLOW = ("experiments", "workspaces")
"""Tables in which MLflow makes a row of its own when it opens an empty database."""


class RegistryMove(Document):
    """Result of a move."""

    source: str
    target: str
    """Address of the database, without its password."""
    files: str
    rows: int
    """Rows in all tables."""
    written: int
    """Files that were written. The others were there."""
    present: int
    champions: dict[str, int | None]
    """Version in service of each model."""
    versions: int
    """Versions with a signature that this home trusts."""
    unsigned: tuple[str, ...]
    """Versions that this home does not trust, as before the move."""
    elsewhere: tuple[str, ...]
    """Addresses of files that are not in the home, so that they stay where they are."""


def move_registry(target: str, files: str) -> RegistryMove:
    """Copy the registry of this home into the database `target`, and the files of its runs and models to `files`.

    Raises `ConfigError` if the target is not on PostgreSQL or has other records, or if either database has another
    schema than the installed MLflow, `StorageError` if the copy differs, and `ConnectionError`.
    """
    database = home() / "mlflow.db"
    source = f"sqlite:///{database}"
    if not target.startswith("postgresql"):
        raise ConfigError(
            f"MLFLOW_TRACKING_URI is {masked(target)}. Set it to the database that the registry moves to, as "
            "postgresql://grpo:PASSWORD@HOST/mlflow"
        )
    if not database.is_file():
        raise ConfigError(f"no registry was found at {database}. Set GRPO_HOME to the home with the registry")
    if (former := former_place(database)) is not None:
        raise ConfigError(f"{moved(former)}. {MIGRATE}")
    for uri in (source, target):
        require_newest(uri)
    file_system, root = open_uri(files)
    if isinstance(file_system, LocalFileSystem):
        file_system.auto_mkdir = True
    folder = ObjectFolder(file_system, root.rstrip("/"))
    if f"{root.rstrip('/')}/".startswith(f"{home()}/{ARTIFACTS}/"):
        raise ConfigError(f"{files} is in {home() / ARTIFACTS}, where the files are. Name another place")
    upgrade_tracking(target)
    with exclusive(source), exclusive(target), _open(source, target) as (before, after):
        tables = _tables()
        new = _is_empty(after, tables)
        if not new and _digests(before, tables, placed=True) != _digests(after, tables):
            raise ConfigError(
                f"the database {masked(target)} has other records than {database}. Name an empty "
                "database. If this registry was moved there before, nothing is left to do"
            )
        written, present = _copy_files(home() / ARTIFACTS, folder)
        rows = _copy_rows(before, after, tables) if new else sum(count for count, _ in _digests(after, tables).values())
        elsewhere = _elsewhere(before, tables)
    champions, versions, unsigned = _verified(source, target)
    note_registry(masked(target))
    return RegistryMove(
        source=str(database),
        target=masked(target),
        files=folder.uri,
        rows=rows,
        written=written,
        present=present,
        champions=champions,
        versions=versions,
        unsigned=unsigned,
        elsewhere=elsewhere,
    )


def _tables() -> MetaData:
    """MLflow's tables with their types, because SQLite stores truth values as numbers, and PostgreSQL does not."""
    from mlflow.store.model_registry.dbmodels.models import SqlModelVersion
    from mlflow.store.tracking.dbmodels.models import SqlRun

    tables: MetaData = SqlRun.metadata
    assert SqlModelVersion.metadata is tables
    return tables


@contextmanager
def _open(source: str, target: str) -> Iterator[tuple[Connection, Connection]]:
    """Connections in one transaction each. Nobody else can write to the source while the block runs."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    try:
        with (
            create_engine(source, poolclass=NullPool).connect() as before,
            create_engine(target, poolclass=NullPool).begin() as after,
        ):
            before.exec_driver_sql("BEGIN IMMEDIATE")
            yield before, after
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
        raise StorageError(
            f"{source} cannot be copied into {masked(target)}: {masked(reason, known=target)}. The target is as it was "
            "before. Remove the cause, and move it again"
        ) from error


def _is_empty(connection: Connection, tables: MetaData) -> bool:
    """True if a database has no rows, except those that MLflow makes when it opens it."""
    from sqlalchemy import func, select

    counts = {table.name: connection.scalar(select(func.count()).select_from(table)) for table in tables.sorted_tables}
    return not any(count > (name in _MADE_BY_MLFLOW) for name, count in counts.items() if count)


def _copy_rows(before: Connection, after: Connection, tables: MetaData) -> int:
    """Copy the rows of all tables, and compare them. Returns their number."""
    for table in reversed(tables.sorted_tables):
        if table.name in _MADE_BY_MLFLOW:
            after.execute(table.delete())
    for number, table in enumerate(tables.sorted_tables):
        progress.report("rows", number, len(tables.sorted_tables))
        for rows in before.execute(table.select()).partitions(_BATCH):
            after.execute(table.insert(), [_placed(row._asdict(), table) for row in rows])
        _continue_numbers(after, table)
    expected, copied = _digests(before, tables, placed=True), _digests(after, tables)
    for name, digest in expected.items():
        if copied[name] != digest:
            raise StorageError(f"the rows of the table {name} differ after the copy, which was undone. Move it again")
    progress.report("rows", len(tables.sorted_tables), len(tables.sorted_tables))
    return sum(count for count, _ in copied.values())


def _continue_numbers(connection: Connection, table: Table) -> None:
    """Let PostgreSQL number the next row after the last one."""
    from sqlalchemy import func, select

    column = table.autoincrement_column
    if (
        column is None
        or (sequence := connection.scalar(select(func.pg_get_serial_sequence(table.name, column.name)))) is None
    ):
        return
    if (last := connection.scalar(select(func.max(column)))) is not None:
        connection.execute(select(func.setval(sequence, max(last, 1))))


def _placed(row: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """A row with its addresses in the new place."""
    return {
        name: _address(value) if name in ADDRESSES.get(table.name, ()) and isinstance(value, str) else value
        for name, value in row.items()
    }


def _address(value: str) -> str:
    """file:///home/mlartifacts/grpo/1f → mlflow-artifacts:/grpo/1f. Another address stays as it is."""
    for place in (str(home()), quote(str(home()))):
        before = f"{FILE}{place}/{ARTIFACTS}"
        if value == before or value.startswith(f"{before}/"):
            return f"{SERVED}{value.removeprefix(before) or '/'}"
    return value


def _digests(connection: Connection, tables: MetaData, *, placed: bool = False) -> dict[str, tuple[int, int]]:
    """Number of rows of each table, and the sum of their digests, because the two databases sort texts differently."""
    digests: dict[str, tuple[int, int]] = {}
    for table in tables.sorted_tables:
        count = total = 0
        for row in connection.execute(table.select().execution_options(yield_per=_BATCH)):
            count, total = count + 1, total + _digest(row, table, placed=placed)
        digests[table.name] = count, total % 2**256
    return digests


def _digest(row: Row[Any], table: Table, *, placed: bool) -> int:
    values = _placed(row._asdict(), table) if placed else row._asdict()
    return int.from_bytes(hashlib.sha256(repr(sorted(values.items())).encode(errors="surrogatepass")).digest())


def _elsewhere(connection: Connection, tables: MetaData) -> tuple[str, ...]:
    """Addresses of runs and models on this machine's disk, outside the home."""
    addresses = {
        _address(row[0])
        for name in ("runs", "logged_models")
        for column in ADDRESSES[name]
        for row in connection.execute(tables.tables[name].select().with_only_columns(tables.tables[name].c[column]))
        if row[0]
    }
    return tuple(sorted(address for address in addresses if address.startswith((FILE, "/"))))


def _copy_files(source: Path, target: ObjectFolder) -> tuple[int, int]:
    """Copy all files below a folder. Returns the numbers of files that were written, and that the target had."""
    paths = files_below(source) if source.is_dir() else []
    present = 0
    for number, path in enumerate(paths):
        progress.report("files", number, len(paths))
        name = path.relative_to(source).as_posix()
        digest = content_digest(path)
        if _digest_there(target, name) == digest:
            present += 1
            continue
        target.upload_file(path, name)
        if _digest_there(target, name) != digest:
            raise StorageError(f"{target.uri}/{name} differs from {path}, which it is a copy of. Move it again")
    progress.report("files", len(paths), len(paths))
    return len(paths) - present, present


def _digest_there(target: ObjectFolder, name: str) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        try:
            target.download_file(name, copy)
        except FileNotFoundError:
            return None
        return content_digest(copy)


def _verified(source: str, target: str) -> tuple[dict[str, int | None], int, tuple[str, ...]]:
    """Champion of each model, number of trusted versions, and the others. Raises `SignatureError` if they differ."""
    states = [_signatures(uri) for uri in (source, target)]
    if states[0] != states[1]:
        raise SignatureError(
            f"the versions or promotions in {masked(target)} differ from those in {source}, because something wrote to "
            "one of them during the move. Empty the new database, and move the registry again"
        )
    champions, faults = states[0]
    unsigned = tuple(sorted(address for address, fault in faults.items() if fault is not None))
    return champions, len(faults) - len(unsigned), unsigned


def _signatures(uri: str) -> tuple[dict[str, int | None], dict[str, str | None]]:
    """Champion of each model by the signed promotions, and the fault of each version."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    champions = {model.name: promotion_state(client, model.name).champion for model in all_models(client)}
    faults = {f"models:/{version.name}/{version.version}": fault_of(version) for version in all_versions(client)}
    return champions, faults
