from __future__ import annotations

import errno
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from grpo_local.managed_process import ManagedProcess
from grpo_local.service_logs import KEPT, rotate_logs
from tests import waiting

until = partial(waiting.until, patience_s=240)
SCRIPT = "import sys\nfor line in sys.stdin: print(line.strip() * 100, flush=True)"


def writing(folder: Path) -> tuple[Callable[[str], None], subprocess.Popen[bytes]]:
    """A process that writes a line of 100 letters to its log for each letter that it is given."""
    with (folder / "serve.log").open("ab") as output:
        child = subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=output)

    def write(letter: str) -> None:
        assert child.stdin is not None
        child.stdin.write(f"{letter}\n".encode())
        child.stdin.flush()
        log = folder / "serve.log"
        until("the line", lambda: log.read_text().endswith(letter * 100 + "\n"))

    return write, child


def test_a_log_is_rotated_while_its_process_writes(tmp_path: Path):
    """Ten letters, rotated above 150 bytes: the newest are kept, in a bounded number of files of the owner alone."""
    write, child = writing(tmp_path)
    with child:
        for letter in "abcdefghij":
            write(letter)
            rotate_logs(tmp_path, largest=150)
        assert child.stdin is not None
        child.stdin.close()
    files = sorted(path.name for path in tmp_path.iterdir() if ".log" in path.name)
    assert files == ["serve.log", *(f"serve.log.{number}" for number in range(1, KEPT + 1))]
    letters = [{*(tmp_path / f"serve.log.{number}").read_text().split("\n")[0]} for number in range(1, KEPT + 1)]
    assert letters == [{"i"}, {"g"}, {"e"}, {"c"}]
    assert (tmp_path / "serve.log").read_text() == ""
    modes = {stat.S_IMODE((tmp_path / f"serve.log.{number}").stat().st_mode) for number in range(1, KEPT + 1)}
    assert modes == {0o600}


def test_a_full_disk_costs_no_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The log cannot be copied, however often it is tried. What is there stays, and nothing is left over."""
    names = ["serve.log", *(f"serve.log.{number}" for number in range(1, KEPT + 1))]
    for name in names:
        (tmp_path / name).write_text(name * 100)

    def fill(log: object, copy: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("grpo_local.service_logs.shutil.copyfileobj", fill)
    for _ in range(KEPT):
        with pytest.raises(OSError, match="No space left"):
            rotate_logs(tmp_path, largest=150)
    assert {path.name: path.read_text() for path in tmp_path.glob("*serve*")} == {name: name * 100 for name in names}


def test_the_log_of_a_service_is_private_and_appends(tmp_path: Path):
    """A service that is started again goes on in its log."""
    (tmp_path / "services").mkdir()
    service = ManagedProcess(name="short", home=tmp_path, arguments=("platform",))
    for _ in range(2):
        service.start()
        until("its end", lambda: service.process() is None)
    assert len(service.log.read_text().splitlines()) == 2
    assert stat.S_IMODE(service.log.stat().st_mode) == 0o600
