"""A disk without room, in the words of every library that writes to it."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from grpo.errors import DataError, StorageError
from grpo.storage.files import files_below, storage_error, storage_errors, write_atomically
from tests.places import DESK_MODEL


def _safetensors(folder: Path) -> None:
    save_file({"weight": np.zeros(1_000_000, dtype=np.float32)}, folder / "w.safetensors")


def _parquet(folder: Path) -> None:
    pq.write_table(pa.table({"a": np.random.default_rng(0).random(1_000_000)}), folder / "t.parquet")


def _text(folder: Path) -> None:
    (folder / "t.txt").write_text("x" * 2_000_000)


def _database(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "d.db")) as database:
        database.execute("CREATE TABLE t (a)")
        database.executemany("INSERT INTO t VALUES (?)", [(b"x" * 1000,)] * 2000)
        database.commit()


def _copies(folder: Path) -> None:
    shutil.copytree(DESK_MODEL, folder / "copy")


@pytest.mark.parametrize("write", [_safetensors, _parquet, _text, _database, _copies])
def test_a_full_disk_is_reported_for_every_writer(write: Callable[[Path], None], small_disk: Path):
    """One error with the place and the remedy, and the library's own as its cause."""
    with (
        pytest.raises(StorageError, match=r"cannot write .*: the disk is full: free space") as refusal,
        storage_errors("there"),
    ):
        write(small_disk)
    assert refusal.value.__cause__ is not None


def _wrapped(full: OSError, *, chained: bool) -> None:
    try:
        raise full
    except OSError as error:
        raise RuntimeError("upload failed") from (error if chained else None)


@pytest.mark.parametrize("chained", [True, False], ids=["raised from it", "raised beside it"])
def test_a_full_disk_is_known_at_any_depth(chained: bool):
    """The file of the innermost error is the place."""
    with pytest.raises(RuntimeError) as refusal:
        _wrapped(OSError(errno.ENOSPC, "No space left on device", "/there/file"), chained=chained)
    assert "cannot write /there/file: the disk is full" in str(storage_error(refusal.value, "/there"))


@pytest.mark.parametrize(
    "error",
    [
        sqlite3.OperationalError("database or disk is full"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
        shutil.Error([("a", "b", "[Errno 28] No space left on device: 'a' -> 'b'")]),
    ],
    ids=["SQLite", "Rust", "shutil"],
)
def test_a_full_disk_is_recognized_by_its_message(error: Exception):
    """Rust, SQLite and copies of folders keep the number in words only."""
    assert "the disk is full" in str(storage_error(error, "/there"))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.EROFS, "Read-only file system", "/elsewhere/x"),
            "cannot write /elsewhere/x: the file system",
        ),
        (OSError(errno.EFBIG, "File too large"), "cannot write /there: it would be larger than a file of this process"),
        (
            RuntimeError("I/O error: File too large (os error 27)"),
            "cannot write /there: it would be larger",
        ),
        (
            shutil.Error([("a", "/elsewhere/b", "[Errno 27] File too large: 'a' -> '/elsewhere/b'")]),
            "cannot write /elsewhere/b: it would be larger than a file",
        ),
    ],
    ids=["read-only", "limit", "Rust", "shutil"],
)
def test_what_only_a_write_is_refused_with_counts_at_any_place(error: Exception, message: str):
    """An output of a command need not be in the store. A copy of a folder names the file that was not written."""
    assert str(storage_error(error, "/there")).startswith(message)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "Permission denied", "/elsewhere/source.jsonl"),
        FileNotFoundError(errno.ENOENT, "No such file", "/there/x"),
        ValueError("no number"),
        DataError("the disk is full of errors"),
    ],
    ids=["source", "missing", "other", "ours"],
)
def test_what_is_not_about_the_store_stays_as_it_is(error: Exception):
    """A source that may not be read is not a store that may not be written."""
    with pytest.raises(type(error)) as same, storage_errors("/there"):
        raise error
    assert same.value is error


def test_missing_permissions_are_reported_for_the_store_alone():
    """The place is the file that was refused."""
    refused = PermissionError(errno.EACCES, "Permission denied", "/there/x")
    assert "cannot use /there/x: permission denied" in str(storage_error(refused, "/there"))


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path):
    """The old content stays, and no partial file beside it."""
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


def test_files_behind_links_are_found_and_a_circle_of_links_ends(tmp_path: Path):
    """a/b → c, and c/d → a: each file is found below a once."""
    for name in ("a", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(name)
    (tmp_path / "a" / "b").symlink_to(tmp_path / "c")
    (tmp_path / "c" / "d").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "gone").symlink_to(tmp_path / "nowhere")
    assert files_below(tmp_path / "a") == [tmp_path / "a" / "a.txt", tmp_path / "a" / "b" / "c.txt"]
