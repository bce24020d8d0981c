"""A shell in a clone that a newcomer has just made, and the commands of pages as the shell gets them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.places import ROOT
from tests.ports import own_port

_FENCE = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^ {4}((?:[A-Z_]+=\S+ )*(?:grpo|make|pip|python|source|export|cd) .*)$", re.MULTILINE)
_LINKED = ("data", "docs", "flows", "grpo", "tasks", "tests", "Makefile", "constraints.txt", "prefect.yaml")
_ANSWER_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A command of a page, or a program in Python, in the order of the page."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0]}"


def blocks(page: Path) -> list[Block]:
    """Commands of a page: its indented lines that begin with a program, and its fenced bash and Python."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        program = match[2] if match[1] == "bash" else f"python - <<'END_OF_PROGRAM'\n{match[2]}END_OF_PROGRAM\n"
        found.append((match.start(), program))
    outside = re.sub(r"^```.*?^```$", lambda part: re.sub(r"[^\n]", "-", part[0]), text, flags=re.MULTILINE | re.DOTALL)
    for match in _LINE.finditer(outside):
        line = " ".join(shlex.split(match[1], comments=True, posix=False))
        if line:
            found.append((match.start(), line))
    name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
    return [Block(page=name, text=text) for _, text in sorted(found)]


class PageShell:
    """A bash process in a folder. What one command sets, the next ones see."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._output = folder.parent / f"{folder.name}-output"
        self._output.mkdir()
        self._count = 0
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=folder, env=dict(environment), stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> PageShell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        self._bash.wait(60)

    def run(self, command: str, *, timeout_s: float = _ANSWER_S) -> tuple[int, str]:
        """Run a command in the shell. Returns its exit code and everything that it printed.

        Raises `TimeoutError`, and ends the shell with all its commands, if this one does not end in time.
        """
        self._count += 1
        output, code = (self._output / f"{self._count}.{name}" for name in ("txt", "code"))
        self._write(f"{{\n{command}\n}} >{output} 2>&1 </dev/null; echo $? >{code}.part; mv {code}.part {code}\n")
        end = time.monotonic() + timeout_s
        while not code.exists():
            if self._bash.poll() is not None or time.monotonic() > end:
                with suppress(ProcessLookupError):
                    os.killpg(self._bash.pid, signal.SIGKILL)
                raise TimeoutError(f"no end of {command}:\n{output.read_text(encoding='utf-8', errors='replace')}")
            time.sleep(0.05)
        return int(code.read_text(encoding="utf-8")), output.read_text(encoding="utf-8", errors="replace")

    def begin(self, command: str) -> Path:
        """Start a command that does not end in the background. Returns the file of what it prints."""
        self._count += 1
        output = self._output / f"{self._count}.txt"
        self._write(f"{command} >{output} 2>&1 </dev/null &\n")
        return output

    def _write(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(text)
        self._bash.stdin.flush()


def clone(folder: Path, grpo: Path, shorter: Mapping[str, tuple[str, ...]]) -> Path:
    """A clone of the repository with an environment, as `make` leaves it.

    Its command `grpo` calls the program `grpo` with the same words. If the words after `grpo train` are in `shorter`,
    further settings stand before the page's own, which therefore win.
    """
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in _LINKED:
        (folder / name).symlink_to(ROOT / name)
    python = sys.executable
    _script(programs / "python", f'exec {python} "$@"')
    cases = "".join(
        f"  {shlex.quote(f'train {words}')}) shift; set -- train "
        f'{" ".join(f"--set {shlex.quote(setting)}" for setting in settings)} "$@" ;;\n'
        for words, settings in shorter.items()
    )
    _script(programs / "grpo", f'case "$*" in\n{cases}esac\nexec {shlex.quote(str(grpo))} "$@"')
    (programs / "activate").write_text(f"export PATH={programs}:$PATH\n", encoding="utf-8")
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (folder / ".venv" / ".ready").touch()
    return folder


def environment(home: Path) -> dict[str, str]:
    """Variables of a login shell, and ports that no other test has.

    PyTorch computes in one thread, as in all tests. If more threads run than there are cores, its threads spin while
    they wait for each other, and a training takes many times as long.
    """
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join(("/usr/local/bin", "/usr/bin", "/bin")),
        "PREFECT_SERVER_API_PORT": str(own_port()),
        "GRPO_MLFLOW_PORT": str(own_port()),
        "GRPO_SERVE_PORT": str(own_port()),
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "flows", ROOT / "tasks"))),
    }


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
