"""`make fuzz` mutates 100,000 records, prints a table, and keeps it in docs/internals/reliability.md.

`python -m tests.fuzz --records 5000 json parquet` fuzzes these kinds of sources alone, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from grpo.storage.files import write_atomically
from tests.benchmarks.page import Table, here
from tests.fuzz.run import Tally, fuzz, targets
from tests.places import INTERNALS

RECORDS, SEED = 102_000, 13  # damaged datasets are refused whole: a little over 100,000 are read
PATIENCE_S = 1800
PAGE = INTERNALS / "reliability.md"
TITLE, SECTION = "# Reliability", "## Fuzzing of sources"
TEXT = """\
Written by `make fuzz` (`tests/fuzz`), seed {seed}. The fuzzer mutates a record, a file, or a companion file (schemas,
answers, policies, databases) and ingests the source. Mutations are values of other types, missing and repeated fields,
depth, NaN and infinities, numbers of 5,000 digits, half surrogate pairs, cells of 200,000 characters, bytes that are
changed, inserted or cut out, and files without their end. Rows with `(published)`, if any, use the first records of the
published data set. A source that is damaged as a whole is refused in one line with place and remedy. Any other
exception, or a process that died, is a crash. A source that takes over a minute is a hang. A count is wrong if the
counts do not add up, if a rejected record has no reason, or if a sound record is lost because its neighbour is damaged.

{records:,} records in {sources:,} mutated sources: **{crashes} crashes, {hangs} hangs, {wrong} wrong counts**."""


def main() -> None:
    """Fuzz the kinds of sources that were named, or all, each in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="*", metavar="KIND")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--child", action="store_true", help="print the tally of one kind as JSON")
    arguments = parser.parse_args()
    names = arguments.names or targets()
    if unknown := sorted(set(names) - set(targets())):
        raise SystemExit(f"no source {', '.join(unknown)}; there are {', '.join(targets())}")
    share = -(-arguments.records // len(names))
    if arguments.child:
        sys.stdout.write(json.dumps(asdict(fuzz(names[0], records=share, seed=arguments.seed))))
        return
    begun = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tallies = list(pool.map(lambda name: _apart(name, share, arguments.seed), names))
    table = _table(tallies).markdown()
    sys.stdout.write(f"{table}\n")
    for line in (line for tally in tallies for line in (*tally.crashes, *tally.hangs, *tally.wrong)):
        sys.stdout.write(f"{line}\n")
    if not arguments.names:
        minutes = (time.monotonic() - begun) / 60
        keep("\n\n".join((_text(tallies, arguments.seed), table, f"Measured on {here()}, in {minutes:.0f} minutes.")))
    raise SystemExit(any(tally.crashes or tally.hangs or tally.wrong for tally in tallies))


def keep(section: str, *, section_title: str = SECTION) -> None:
    """Put the section in the place of the one that the page has, and leave the others."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else f"{TITLE}\n"
    before, _, behind = page.partition(f"{section_title}\n")
    others = behind.partition("\n## ")
    rest = f"\n## {others[2]}" if others[1] else ""
    write_atomically(PAGE, f"{before.rstrip()}\n\n{section_title}\n\n{section}\n{rest}")


def _apart(name: str, records: int, seed: int) -> Tally:
    """Fuzz in a process of its own: one that dies is a crash."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.fuzz",
        "--child",
        f"--records={records}",
        f"--seed={seed}",
        name,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return Tally(name=name, hangs=[f"{name}, seed {seed}: the process took over {PATIENCE_S} s"])
    if done.returncode != 0:
        return Tally(name=name, crashes=[f"{name}, seed {seed}: exit {done.returncode}: {done.stderr[-300:]}"])
    return Tally(**json.loads(done.stdout))


def _table(tallies: Sequence[Tally]) -> Table:
    rows = [
        (t.name, t.sources, t.records, t.refused, len(t.crashes), len(t.hangs), len(t.wrong))
        for t in sorted(tallies, key=lambda tally: tally.name)
    ]
    total = ("**all**", *(sum(row[column] for row in rows) for column in range(1, 7)))
    return Table(
        head=("source", "mutated sources", "records read", "sources refused", "crashes", "hangs", "wrong counts"),
        rows=tuple(tuple(f"{cell:,}" if isinstance(cell, int) else cell for cell in row) for row in (*rows, total)),
    )


def _text(tallies: Sequence[Tally], seed: int) -> str:
    return TEXT.format(
        seed=seed,
        records=sum(tally.records for tally in tallies),
        sources=sum(tally.sources for tally in tallies),
        crashes=sum(len(tally.crashes) for tally in tallies),
        hangs=sum(len(tally.hangs) for tally in tallies),
        wrong=sum(len(tally.wrong) for tally in tallies),
    )


if __name__ == "__main__":
    main()
