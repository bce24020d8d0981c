"""The chaos table in docs/internals/reliability.md, from the outcomes of cells."""

from __future__ import annotations

import json
from pathlib import Path

from tests.benchmarks.page import Table, here
from tests.chaos.cells import BAR_S, UNDISTURBED, Outcome, all_cells
from tests.chaos.faults import FAULTS, MOMENTS
from tests.chaos.stack import SILENCE_S
from tests.fuzz.__main__ import keep

SECTION = "## Chaos"


class Played:
    """Outcomes of cells by name, kept in a file as they come."""

    def __init__(self, file: Path | None = None) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._file = file
        if file is not None and file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                document = json.loads(line)
                outcome = Outcome(**{**document, "leftovers": tuple(document["leftovers"])})
                self.outcomes[outcome.cell] = outcome

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome."""
        self.outcomes[outcome.cell] = outcome
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(f"{json.dumps(outcome.document())}\n")

    def missed(self, outcome: Outcome) -> list[str]:
        """Faults of an outcome that misses the bar. Empty if it meets it."""
        return outcome.faults(self.outcomes[UNDISTURBED].policy)

    def line(self, outcome: Outcome) -> str:
        """One line of an outcome."""
        seconds = max(outcome.seconds.values())
        return f"{outcome.cell}: {'; '.join(self.missed(outcome)) or outcome.state.lower()} ({seconds:.0f} s)"

    def cells(self) -> dict[str, Outcome]:
        """The outcome of each single cell that was played; of one that was played twice, the last."""
        names = [(name, outcome) for outcome in self.outcomes.values() for name in outcome.seconds]
        return {name: outcome for name, outcome in names if name != UNDISTURBED}

    def cell(self, name: str) -> str:
        """Text of a cell of the table: seconds to the end, failed with a notification, what it misses, or not run."""
        outcome = self.cells().get(name)
        if outcome is None:
            return "not run"
        if missed := self.missed(outcome):
            return f"**{'; '.join(missed)}**"
        ended = "" if outcome.state == "COMPLETED" else "Failed, notified, "
        return f"{ended}{outcome.seconds[name]:.0f} s{'' if len(outcome.seconds) == 1 else '*'}"


def write_page(played: Played) -> None:
    """Write the section of docs/internals/reliability.md."""
    rows = tuple(
        (fault.text, *(played.cell(f"{name}@{moment}") if moment in fault.moments else "–" for moment in MOMENTS))
        for name, fault in FAULTS.items()
    )
    cells = played.cells()
    missed = sum(bool(played.missed(outcome)) for outcome in cells.values())
    runs = len({outcome.cell for outcome in cells.values()})
    undisturbed = played.outcomes[UNDISTURBED]
    text = f"""\
Written by `make chaos` (`tests/chaos`). A stack on loopback: PostgreSQL, Prefect's server, MLflow, an S3 server, and
two machines, each with a home and a disk: `cpu` drives the run, `gpu` gets one of its stages. A worker that has ended
is started again after 3 s, as Kubernetes or systemd do. A fault begins when the machine that it hits asks the store
for the result of the stage `ingest`, `rollout`, `train` or `register`; stages before that one are cache hits. The
number is the time from the end of the fault to the end of the run. A cell meets the bar if this time is at most
{BAR_S:.0f} s, and no staged files, unfinished uploads, open stages, processes or slots are left. The run is then
either Completed, with the policy of the undisturbed run, one version and one promotion, or "Failed, notified": it
failed with an error of one sentence, the webhook got a text about it, and the next run of the same config was
Completed. A cell that misses the bar says what was wrong. A time with * is from a run that several faults hit, one
after another, and includes the later faults. If two faults of a run are at the same moment, the second begins at once
or, if the first ends the stage, when the stage is asked for again. CI plays five of the cells in one run
(`tests/e2e/test_chaos.py`), in which a fault ends after 10 s. A run counts as lost here after {SILENCE_S} s without a
heartbeat, but in operation after 120 s: add 50 s where a process is stopped or a machine is lost.

{len(cells)} of {len(all_cells())} cells were played in {runs} runs, and {missed} of them miss the bar. Undisturbed, the
run took {undisturbed.seconds[UNDISTURBED]:.0f} s."""
    table = Table(head=("fault", *MOMENTS), rows=rows).markdown()
    commits = ", ".join(sorted({outcome.commit for outcome in cells.values()}))
    keep("\n\n".join((text, table, f"Measured on {here()}; played at {commits}.")), section_title=SECTION)
