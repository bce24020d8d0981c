"""Uses of one thing by several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from grpo.storage.locks import same_use

HOLD = """
import sys
from pathlib import Path
from grpo.storage.locks import same_use
with same_use(Path(sys.argv[1]), sys.argv[2]) as is_free:
    print(is_free, flush=True)
    sys.stdin.read()
"""


def _holding(folder: Path, use: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(folder), use]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_a_thing_has_one_use_at_a_time(tmp_path: Path):
    """Two processes of one use share it. Another use has to wait until both have ended, also if one was killed."""
    folder = tmp_path / "desk"
    with _holding(folder, "a") as first, _holding(folder, "a") as second:
        _check(folder, first, second)
    assert {path.name for path in folder.iterdir()} <= {"all.lock", "a", "b"}


def _check(folder: Path, first: subprocess.Popen[str], second: subprocess.Popen[str]) -> None:
    with same_use(folder, "b") as is_free:
        assert not is_free
    with same_use(folder, "a") as is_free:
        assert is_free
        with same_use(folder, "b") as other:
            assert not other
    first.kill()
    first.wait()
    with same_use(folder, "b") as is_free:
        assert not is_free
    second.communicate()
    with same_use(folder, "b") as is_free:
        assert is_free
        with same_use(folder, "a") as other:
            assert not other
