"""The real command with wrong input of every kind, each in a process of its own, and what it ends with.

`python -m tests.wrong_usage` tries all of `tests/wrong_usages.py` and writes the table in
docs/internals/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo_local.managed_process import free_port
from grpo_local.settings import import_packages
from tests.places import INTERNALS, ROOT
from tests.wrong_usages import USAGES, Usage

PAGE = INTERNALS / "reliability.md"
HEADING = "## Wrong usages"
_LONGEST_S = 60.0
_PROCESSES = 2
_LATE = (
    *("grpo.policy.transformers.quantization", "grpo.rewards.hacking.check", "grpo.rewards.judge.client"),
    *("grpo.scenarios.expectations", "great_expectations", "grpo_cli.chat", "sqlalchemy.dialects.sqlite"),
    *("pyarrow.parquet", "transformers.models.llama.modeling_llama"),
)
_OURS = ("PREFECT", "MLFLOW", "GRPO")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of one command; `code` is None for one that had to be killed."""

    name: str
    code: int | None
    stdout: str
    stderr: str
    seconds: float
    left: tuple[str, ...]
    """Files and folders that the command has made in its home, and the home itself as `.`."""

    @property
    def text(self) -> str:
        """All that was printed, without the line breaks of a terminal."""
        return " ".join((self.stdout + " " + self.stderr).split())


def faults(usage: Usage, outcome: Outcome) -> list[str]:
    """Faults of an outcome: exit code, text, a traceback, a repeated line, a file or folder left behind."""
    wrong = []
    if outcome.code != usage.code:
        wrong.append(f"exit code {outcome.code}, expected {usage.code}")
    wrong += [f"lacks {words!r}" for words in usage.messages if words not in outcome.text]
    wrong += [f"contains {words!r}" for words in usage.never if words in outcome.text]
    if _TRACEBACK.search(outcome.text):
        wrong.append("a traceback")
    lines = [line.strip() for line in outcome.stderr.splitlines() if len(_WORDS.findall(line)) > 2]
    wrong += [f"twice: {line!r}" for line, count in Counter(lines).items() if count > 1]
    wrong += [f"left {name}" for name in outcome.left if usage.code == 2]
    return wrong


def run_all(usages: Sequence[Usage]) -> list[Outcome]:
    """Try each usage in a process that is forked from one which has loaded the libraries, two at once."""
    _load()
    outcomes: dict[str, Outcome] = {}
    waiting, running = list(reversed(usages)), list[_Process]()
    with tempfile.TemporaryDirectory(prefix="wrong-usage-") as folder:
        while waiting or running:
            while waiting and len(running) < _PROCESSES:
                usage = waiting.pop()
                running.append(_Process(usage, Path(folder) / re.sub(r"\W+", "-", usage.name)[:80]))
            for process in list(running):
                if (outcome := process.outcome()) is not None:
                    running.remove(process)
                    outcomes[outcome.name] = outcome
            time.sleep(0.01)
    return [outcomes[usage.name] for usage in usages]


def _load() -> None:
    """Import what takes seconds. No usage gets as far as Prefect's server, whose address is read at the import."""
    with tempfile.TemporaryDirectory() as nowhere:
        os.environ["PREFECT_HOME"] = nowhere
        import_packages("grpo_cli.app", "grpo_cli.doctor", "grpo_flows.dry_run", "mlflow", *_LATE)
        del os.environ["PREFECT_HOME"]


class _Process:
    """One command while it runs."""

    def __init__(self, usage: Usage, folder: Path) -> None:
        folder.mkdir()
        for name, content in usage.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else _filled(content, folder).encode())
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        environment |= {"GRPO_HOME": "{folder}/home", "PREFECT_SERVER_API_PORT": str(free_port())}
        environment |= usage.environment
        self._usage, self._folder, self._home = usage, folder, folder / "home"
        self._before = _files(self._home)
        self._began = time.monotonic()
        self._pid = _fork(
            [_filled(argument, folder) for argument in usage.arguments],
            {name: _filled(value, folder) for name, value in environment.items()},
            folder,
        )

    def outcome(self) -> Outcome | None:
        """The end of the command, None while it runs; one that does not end is killed."""
        seconds = time.monotonic() - self._began
        ended, status = os.waitpid(self._pid, os.WNOHANG)
        if not ended and seconds < _LONGEST_S:
            return None
        if not ended:
            os.killpg(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        return Outcome(
            name=self._usage.name,
            code=os.waitstatus_to_exitcode(status) if ended else None,
            stdout=(self._folder / ".stdout").read_text(encoding="utf-8", errors="replace"),
            stderr=(self._folder / ".stderr").read_text(encoding="utf-8", errors="replace"),
            seconds=seconds,
            left=tuple(sorted(_files(self._home) - self._before)),
        )


def _fork(arguments: list[str], environment: Mapping[str, str], folder: Path) -> int:
    """Start the command in a copy of this process; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        for descriptor, name in ((1, ".stdout"), (2, ".stderr")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (
            open(descriptor, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
            for descriptor in (1, 2)
        )
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(ROOT)
        from grpo_cli.app import run

        sys.argv[1:] = arguments
        try:
            run()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 - as Python itself would end
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _filled(text: str, folder: Path) -> str:
    return text.replace("{folder}", str(folder)).replace("{root}", str(ROOT))


def _files(home: Path) -> set[str]:
    """Files and folders of a home, and the home itself as `.`."""
    return {str(path.relative_to(home)) for path in (home, *home.rglob("*")) if path.exists()}


def write_page(outcomes: Sequence[Outcome]) -> None:
    """Put the counts into the page, in place of those that stand there."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    groups: dict[str, list[Usage]] = {}
    for usage in USAGES:
        groups.setdefault(usage.group, []).append(usage)
    wrong = {usage.name: faults(usage, outcome) for usage, outcome in zip(USAGES, outcomes, strict=True)}
    rows = [
        f"| {group} | {len(usages)} | {_counted(Counter(usage.code for usage in usages))} | "
        f"{sum(bool(wrong[usage.name]) for usage in usages)} |"
        for group, usages in groups.items()
    ]
    total = Counter(usage.code for usage in USAGES)
    section = "\n".join(
        [
            HEADING,
            "",
            "The real command runs once for each row of `tests/wrong_usages.py`. It is as it should be if the exit",
            "code is the expected one (1 failed, 2 wrong input, 3 refused), if the message has value, place and",
            "remedy, if there is no traceback, no further fault and no repeated line, and if exit code 2 leaves",
            "nothing new in the home.",
            "",
            "| wrong | usages | exit codes | not as it should be |",
            "|---|---|---|---|",
            *rows,
            f"| all | {len(USAGES)} | {_counted(total)} | {sum(map(bool, wrong.values()))} |",
            "",
            f"Made by `python -m tests.wrong_usage` at commit {commit.stdout.strip()}: the longest took "
            f"{max(outcome.seconds for outcome in outcomes):.1f} s.",
            "",
        ]
    )
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else "# Reliability\n"
    before, found, rest = page.partition(f"{HEADING}\n")
    after = re.search(r"^## ", rest, re.MULTILINE) if found else None
    PAGE.write_text(
        f"{before.rstrip()}\n\n{section}" + (f"\n{rest[after.start() :]}" if after else ""), encoding="utf-8"
    )


def _counted(codes: Mapping[int, int]) -> str:
    return ", ".join(f"{count} × {code}" for code, count in sorted(codes.items()))


def main() -> None:
    """Try all, or those whose names contain a text, and print the faults."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", default="", help="a part of the names; the page is not written")
    parser.add_argument("--json", type=Path, help="write the outcomes here; the page is not written")
    options = parser.parse_args()
    usages = [usage for usage in USAGES if options.only in usage.name]
    outcomes = run_all(usages)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes]), encoding="utf-8")
        return
    failed = 0
    for usage, outcome in zip(usages, outcomes, strict=True):
        wrong = faults(usage, outcome)
        failed += bool(wrong)
        if wrong or options.only:
            print(f"{usage.name} ({outcome.seconds:.1f} s): {'; '.join(wrong) or 'as it should be'}")
            print("    " + (outcome.stdout + outcome.stderr)[-2500:].strip().replace("\n", "\n    "))
    print(f"{len(usages)} wrong usages, {failed} not as they should be")
    if not options.only:
        write_page(outcomes)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
