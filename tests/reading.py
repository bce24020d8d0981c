"""Ways in which a user's code reads a number, each with what changes it: the rows of docs/internals/identity.md."""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HEAD = """
import asyncio, ctypes, os, sqlite3, subprocess, threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).parent
AT_IMPORT = int((HERE / "at_import.txt").read_text())
VARIABLE_AT_IMPORT = int(os.environ.get("READ_AT_IMPORT", "0"))

def of_helper():
    from PACKAGE import helper
    return helper.NUMBER

def of_thread():
    numbers = []
    thread = threading.Thread(target=lambda: numbers.append(int((HERE / "thread.txt").read_text())))
    thread.start()
    thread.join()
    return numbers[0]

def of_pool():
    with ThreadPoolExecutor(1) as pool:
        return int(next(pool.map(Path.read_text, [HERE / "pool.txt"])))

def of_sqlite():
    with closing(sqlite3.connect(HERE / "sqlite.db")) as database:
        return database.execute("SELECT number FROM numbers").fetchone()[0]

def of_pyarrow():
    import pyarrow.parquet
    return pyarrow.parquet.read_table(HERE / "pyarrow.parquet")["number"][0].as_py()

def of_program():
    return int(subprocess.run(["cat", str(HERE / "program.txt")], capture_output=True, check=True).stdout)

def of_ctypes(path=HERE / "ctypes.txt"):
    libc, text = ctypes.CDLL(None), ctypes.create_string_buffer(20)
    descriptor = libc.open(str(path).encode(), 0)
    libc.read(descriptor, text, 20)
    libc.close(descriptor)
    return int(text.value)

def of_size():
    return os.stat(HERE / "size.txt").st_size

def of_existence():
    return int((HERE / "existence.txt").exists())

def of_variable():
    return int(os.environ.get("READ_IN_STAGE", "0"))

def of_declared_file():
    return of_ctypes("OUTSIDE")

def of_declared_variable():
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    return int(libc.getenv(b"READ_IN_C") or 0)

WAYS = {name.removeprefix("of_"): value for name, value in dict(globals()).items() if name.startswith("of_")}
WAYS["import"] = lambda: AT_IMPORT
WAYS["variable at import"] = lambda: VARIABLE_AT_IMPORT
"""
REWARD = """
from grpo import RewardFunction, RewardResult

class Reading(RewardFunction):
    name = "reading"
    probed = False

    async def compute_reward(self, turns, context):
        length = sum(len(turn.content) for turn in turns if turn.role == "assistant")
        return RewardResult(score=(length % 7) / 10 + sum(read() for read in WAYS.values()) / 1000)
"""


@dataclass(frozen=True, slots=True)
class Package:
    """A package of a user's that reads numbers, and the file that it reads outside of its folder."""

    folder: Path
    outside: Path
    variables: dict[str, str]

    @property
    def name(self) -> str:
        """Name of the package."""
        return self.folder.name

    @property
    def reads(self) -> list[str]:
        """What has to be declared."""
        return [str(self.outside), "$READ_IN_C"]

    def write(self, file: str, number: int) -> None:
        """Write a number where the code reads it."""
        (self.folder / file).write_text(str(number))

    def write_table(self, number: int) -> None:
        """Write a number into the Parquet file."""
        pq.write_table(pa.table({"number": [number]}), self.folder / "pyarrow.parquet")

    def write_database(self, number: int) -> None:
        """Write a number into the database."""
        with closing(sqlite3.connect(self.folder / "sqlite.db")) as database, database:
            database.execute("UPDATE numbers SET number = ?", (number,))


def put_reading(folder: Path, name: str) -> Package:
    """Put a package that reads 1 in each way, nothing of a variable and of a file that is missing."""
    package = Package(folder / name, folder.parent / f"{name}_outside.txt", {})
    package.folder.mkdir(parents=True)
    source = HEAD.replace("PACKAGE", name).replace("OUTSIDE", '" + "/'.join(str(package.outside).split("/")))
    helper = "from pathlib import Path\nNUMBER = int(Path(__file__).with_name('helper.txt').read_text())\n"
    for module, text in (("__init__", ""), ("numbers", source + REWARD), ("helper", helper)):
        (package.folder / f"{module}.py").write_text(text)
    for file in ("at_import", "helper", "thread", "pool", "program", "ctypes", "size"):
        package.write(f"{file}.txt", 1)
    package.outside.write_text("1")
    package.write_table(1)
    with closing(sqlite3.connect(package.folder / "sqlite.db")) as database, database:
        database.execute("CREATE TABLE numbers (number)")
        database.execute("INSERT INTO numbers VALUES (1)")
    importlib.invalidate_caches()  # the import system may have looked into the folder in the moment before
    return package


CHANGES: dict[str, tuple[Callable[[Package], object], int]] = {
    "a file at import": (lambda package: package.write("at_import.txt", 3), 2),
    "a file at the import of another module": (lambda package: package.write("helper.txt", 4), 3),
    "a file in a thread": (lambda package: package.write("thread.txt", 3), 2),
    "a file in a pool of threads": (lambda package: package.write("pool.txt", 4), 3),
    "a database of sqlite3": (lambda package: package.write_database(3), 2),
    "a table through pyarrow": (lambda package: package.write_table(4), 3),
    "a file through a program": (lambda package: package.write("program.txt", 3), 2),
    "a file through ctypes": (lambda package: package.write("ctypes.txt", 4), 3),
    "a size through os.stat": (lambda package: package.write("size.txt", 100), 2),
    "a file that is there now": (lambda package: package.write("existence.txt", 0), 1),
    "a variable": (lambda package: package.variables.update(READ_IN_STAGE="2"), 2),
    "a variable at import": (lambda package: package.variables.update(READ_AT_IMPORT="3"), 3),
    "a declared file": (lambda package: package.outside.write_text("3"), 2),
    "a declared variable": (lambda package: package.variables.update(READ_IN_C="2"), 2),
}
"""Change of each way, and by how much the sum of the numbers grows."""
SUM = 10
"""Of the numbers of `put_reading`."""
