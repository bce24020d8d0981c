"""A clock that is off, for programs that tests start.

The library of Debian's `faketime` makes Python's `time.sleep` fail, and with it the heartbeats of runs.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")
VARIABLES = ("LD_PRELOAD", "PYTHON_TEST_CLOCK", "PYTHON_TEST_CLOCK_FILES")
"""Variables that the servers inherit as well, see `grpo_local.inherited`."""


def clock_variables(folder: Path, seconds: int, *, files: bool = False) -> dict[str, str]:
    """Variables of programs whose clock is off by these seconds. With `files`, the times of files are off as well.

    Compiles the library into the folder. `set_clock` changes the seconds while the programs run.
    """
    library = folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"], check=True)
    set_clock(folder, seconds)
    return dict(zip(VARIABLES, (str(library), str(_clock(folder)), str(int(files))), strict=True))


def set_clock(folder: Path, seconds: int) -> None:
    """Let the clock be off by these seconds, from one second to the next."""
    _clock(folder).write_text(f"{seconds}")


def _clock(folder: Path) -> Path:
    return folder / "clock"
