"""The tests under other conditions: `make conditions`, or `python -m tests.conditions clock` for one of them.

    order        test files and the tests of each file in random order
    environment  another time zone, locale and hash seed
    clock        a clock that goes from one year to the next ten minutes after the start

Each condition takes as long as the tests take. `--together` sets all of them in one run. Arguments after `--` go to
pytest instead of the whole suite, e.g. `python -m tests.conditions -- tests/grpo/log`. A run prints what it was started
with, so that it can be repeated.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from tests.places import ROOT
from tests.shifted_clock import clock_variables

CONDITIONS = ("order", "environment", "clock")
SUITES = (
    ("-n", "3", "-m", "not e2e", "--ignore", "tests/e2e"),
    ("-n", "3", "-m", "e2e", "tests/e2e", "tests/docs/test_configs.py"),
)
"""The arguments of `make test` and `make e2e`."""
_PARALLEL = ("--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart", "0")
_BEFORE_THE_YEAR_ENDS = timedelta(minutes=10)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites under each condition. Returns 1 if a test has failed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    ours, theirs = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    parser = argparse.ArgumentParser(prog="python -m tests.conditions")
    parser.add_argument("conditions", nargs="*", metavar="condition", help=f"of {', '.join(CONDITIONS)}; all without")
    parser.add_argument("--together", action="store_true", help="all conditions in one run")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31), help="of the order and of hashes")
    options = parser.parse_args(ours)
    if unknown := set(options.conditions) - set(CONDITIONS):
        parser.error(f"no condition {', '.join(sorted(unknown))}. There are {', '.join(CONDITIONS)}")
    names = options.conditions or CONDITIONS
    failed = False
    for conditions in [names] if options.together else [[name] for name in names]:
        with tempfile.TemporaryDirectory(prefix="grpo-clock-") as folder:
            Path(folder).chmod(0o755)  # PostgreSQL reads the clock as a user of its own
            variables, more = dict[str, str](), list[str]()
            for name in conditions:
                its_variables, its_arguments = _condition(name, options.seed, Path(folder))
                variables |= its_variables
                more += its_arguments
            for suite in [tuple(theirs)] if theirs else SUITES:
                failed |= _run((*suite, *more), variables) != 0
    return int(failed)


def _condition(name: str, seed: int, folder: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Environment variables and arguments of pytest."""
    if name == "order":
        return {}, ("--random-order-bucket", "module", "--random-order-seed", str(seed))
    if name == "environment":
        return {"TZ": "Pacific/Chatham", "LC_ALL": "C", "PYTHONHASHSEED": str(seed)}, ()
    now = datetime.now().astimezone()
    end = now.replace(year=now.year + 1, month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    return clock_variables(folder, int((end - _BEFORE_THE_YEAR_ENDS - now).total_seconds()), files=True), ()


def _run(arguments: Sequence[str], variables: Mapping[str, str]) -> int:
    command = [sys.executable, "-m", "pytest", "-q", *(_PARALLEL if "-n" in arguments else ()), *arguments]
    shown = " ".join(f"{name}={value}" for name, value in variables.items())
    print(f"{shown} {' '.join(command)}", flush=True)
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
