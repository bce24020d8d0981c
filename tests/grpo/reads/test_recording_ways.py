"""What counts as a read of the user's code besides files that Python opens, and what does not."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from grpo.reads.names import current_digest, is_read, shown
from grpo.reads.recorder import changed
from grpo.reads.recording import recorded_reads


def _variables(read: Any) -> dict[str, str | None]:
    with recorded_reads() as recorder:
        read()
    return {name: digest for name, digest in recorder.digests().items() if name.startswith("variable ")}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(autouse=True)
def _tone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TONE", "kind")
    monkeypatch.delenv("VOLUME", raising=False)


@pytest.mark.parametrize(
    "read",
    [
        lambda: os.environ["TONE"],
        lambda: os.getenv("TONE"),
        lambda: "TONE" in os.environ,
        lambda: os.environ.get("TONE"),
    ],
)
def test_a_variable_is_recorded_however_it_is_looked_up(read: Any):
    """Its digest, and not its value; what it stands for now is compared with it."""
    reads = _variables(read)
    assert reads == {"variable TONE": _digest("kind")}
    assert changed(reads) == []
    os.environ["TONE"] = "rude"
    assert changed(reads) == ["variable TONE"]


def test_an_absent_variable_is_recorded_and_one_that_is_set_later_has_changed(monkeypatch: pytest.MonkeyPatch):
    """The default was used."""
    reads = _variables(lambda: os.environ.get("VOLUME", "3"))
    assert reads == {"variable VOLUME": None}
    monkeypatch.setenv("VOLUME", "4")
    assert changed(reads) == ["variable VOLUME"]


def test_of_a_credential_only_its_presence_counts(monkeypatch: pytest.MonkeyPatch):
    """A digest of a short password could be guessed, and a new key changes no result."""
    monkeypatch.setenv("SHOP_API_KEY", "hunter2")
    reads = _variables(lambda: os.environ["SHOP_API_KEY"])
    assert reads == {"variable SHOP_API_KEY": "set"}
    monkeypatch.setenv("SHOP_API_KEY", "hunter3")
    assert changed(reads) == []
    monkeypatch.delenv("SHOP_API_KEY")
    assert changed(reads) == ["variable SHOP_API_KEY"]


def test_a_copy_of_the_environment_and_variables_of_the_machine_do_not_count():
    """A program that is started gets all variables; `PATH` differs from shell to shell."""
    assert _variables(lambda: [{**os.environ}, dict(os.environ), os.environ.copy(), os.environ.get("PATH")]) == {}
    assert "TONE" in {**os.environ}


def _out_of_context(read: Any) -> None:
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()


def test_what_a_thread_or_a_coroutine_of_the_user_looks_up_is_recorded():
    """In a thread, and in a thread pool of asyncio, where no frame of the user's is."""

    def read() -> None:
        _out_of_context(lambda: os.environ["TONE"])
        asyncio.run(asyncio.to_thread(os.environ.__getitem__, "VOLUME")) if "VOLUME" in os.environ else None

    os.environ["VOLUME"] = "5"
    assert _variables(read).keys() == {"variable TONE", "variable VOLUME"}
    del os.environ["VOLUME"]


def test_existence_and_status_are_recorded_apart(tmp_path: Path):
    """A file that was only looked for may change; one whose size was read may not."""
    for name in ("there", "sized"):
        (tmp_path / name).write_text("a")
    with recorded_reads() as recorder:
        (tmp_path / "there").exists()
        (tmp_path / "gone").is_file()
        (tmp_path / "sized").stat()
    reads = recorder.digests()
    assert {name: reads[name] for name in reads if not name.startswith("stat")} == {
        f"exists {tmp_path / 'there'}": "file",
        f"exists {tmp_path / 'gone'}": None,
    }
    for name in ("there", "sized"):
        (tmp_path / name).write_text("longer")
    assert changed(reads) == [f"stat {tmp_path / 'sized'}"]
    (tmp_path / "gone").mkdir()
    (tmp_path / "there").unlink()
    assert len(changed(reads)) == 3


def test_os_stat_is_the_systems_own_outside_of_a_recording(tmp_path: Path):
    """Also what the standard library knows of it."""
    before = os.stat
    with recorded_reads():
        assert os.stat is not before
        assert os.stat in os.supports_follow_symlinks
        assert os.stat(tmp_path).st_ino == before(tmp_path).st_ino  # noqa: PTH116 - the function itself
        with pytest.raises(FileNotFoundError):
            (tmp_path / "missing").stat()
    assert os.stat is before


def test_a_program_counts_with_its_arguments_that_are_files_and_what_it_writes_does_not(tmp_path: Path):
    """Also inside of a shell's command; its output is a file that changes."""
    (tmp_path / "in.txt").write_text("b\na\n")
    (tmp_path / "out.txt").write_text("")
    with recorded_reads() as recorder:
        subprocess.run(f"sort {tmp_path / 'in.txt'} > {tmp_path / 'out.txt'}", shell=True, check=True)
    reads = recorder.digests()
    assert str(tmp_path / "in.txt") in reads
    assert str(tmp_path / "out.txt") not in reads
    assert recorder.unseen == ["the program sh"]


def test_a_program_that_reports_devices_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a GPU accelerate starts it, in whatever stage makes a trainer first."""
    reports = tmp_path / "nvidia-smi"
    reports.write_text("#!/bin/sh\necho 1, GPU\n")
    reports.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with recorded_reads() as recorder:
        subprocess.run(["nvidia-smi"], check=True, stdout=subprocess.DEVNULL)
    assert recorder.unseen == []
    assert str(reports) not in recorder.digests()
    data = tmp_path / "data.txt"
    data.write_text("b\na\n")
    with recorded_reads() as recorder:
        os.system(f"nvidia-smi > /dev/null && sort {data} > /dev/null")
    assert recorder.unseen == ["the program nvidia-smi"]
    assert str(data) in recorder.digests()


def test_what_another_program_opens_beside_the_code_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An editor opens every file of a folder; only what the code's texts name can be its own."""
    (tmp_path / "beside_code.py").write_text("")
    for name in ("notes.md", "words_en.bin"):
        (tmp_path / name).write_text(name)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["cat", *(str(path) for path in sorted(tmp_path.iterdir()))]
    program = "import subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)"
    waiting = subprocess.Popen(
        [sys.executable, "-c", f"input(); {program}", *command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    with recorded_reads(["beside_code"], ["words_", ".bin"]) as recorder:
        waiting.communicate(b"\n", timeout=240)
    assert set(recorder.digests()) == {"beside_code:words_en.bin"}


def test_names_are_shown_with_absolute_paths_and_their_digests_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In a lineage; a name whose module is not here has no digest."""
    (tmp_path / "shown_code.py").write_text("")
    (tmp_path / "words.txt").write_text("a")
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in (
        ("shown_code:words.txt", f"file {tmp_path}/words.txt"),
        ("exists shown_code:words.txt", f"exists {tmp_path}/words.txt"),
        (str(tmp_path / "words.txt"), f"file {tmp_path}/words.txt"),
        ("variable TONE", "variable TONE"),
    ):
        assert shown(name) == text
        assert current_digest(name) == current_digest(text) is not None
        assert is_read(text)
    assert current_digest("gone_code:words.txt") is None
