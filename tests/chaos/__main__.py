"""`make chaos` plays the cells of the chaos table on a real stack, and keeps it in docs/internals/reliability.md.

`python -m tests.chaos --cells sigkill-driver@train,s3-503@rollout` plays these, `postgres-20@ingest+s3-503@train` plays
both in one run. `--json FILE` keeps outcomes as they come, and cells whose outcome is there are not played again;
`--write` writes the table from it. `--longest-s 10` ends each fault after 10 s, which the table does not allow.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from tests.chaos.cells import AGAIN, UNKNOWN, Cell, Outcome, all_cells, play, state_now
from tests.chaos.stack import running_stack
from tests.chaos.table import Played, write_page


def main() -> None:
    """Play cells, print each verdict, and exit with 1 if one misses the bar."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--cells", default="", help="names, with commas between; all by default")
    parser.add_argument("--json", type=Path, default=None, help="file of outcomes, which is added to")
    parser.add_argument(
        "--write", action="store_true", help="write docs/internals/reliability.md; without --cells always"
    )
    parser.add_argument("--longest-s", type=float, default=math.inf, help="seconds after which each fault ends")
    arguments = parser.parse_args()
    if arguments.longest_s < math.inf and (arguments.write or not arguments.cells):
        parser.error("the table has faults of their whole length: leave out --longest-s, or name cells without --write")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the stack is taken down

    played = Played(arguments.json)
    if names := [name for name in arguments.cells.split(",") if name] or ([] if arguments.write else all_cells()):
        _play(names, played, longest_s=arguments.longest_s)
    if arguments.write or not arguments.cells:
        write_page(played)
    raise SystemExit(any(played.missed(outcome) for outcome in played.outcomes.values()))


def _play(names: Sequence[str], played: Played, *, longest_s: float) -> None:
    """Play these cells, after an undisturbed run, on a stack that is started for them."""
    with running_stack() as stack:
        runs: dict[UUID, Outcome] = {}
        for cell in (None, *map(Cell.named, names)):
            if cell is None or cell.name not in played.outcomes:
                run, outcome = play(stack, cell, longest_s=longest_s)
                runs[run] = outcome
                played.add(outcome)
                sys.stdout.write(f"{json.dumps(outcome.document())}\n{played.line(outcome)}\n")
                sys.stdout.flush()
                _look_again(runs, played)


def _look_again(runs: dict[UUID, Outcome], played: Played) -> None:
    """Note the runs that did not stay Completed."""
    for run, outcome in runs.items():
        if outcome.state == "COMPLETED" and (later := state_now(run)) not in (outcome.state, UNKNOWN):
            runs[run] = replace(outcome, state=f"{AGAIN}{later}")
            played.add(runs[run])


if __name__ == "__main__":
    main()
