"""A million lines through the ingest stage, in a process of its own."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.benchmarks.measure import command_cost
from tests.benchmarks.page import Findings, Table

LINES = 1_000_000
LINE = (
    '{{"id": "s{k}", "topic": "orders", "domain": "customer_service", "user_responses": '
    '["My order {k} has not arrived, can you look?", "It was placed two weeks ago."], '
    '"metadata": {{"difficulty": "easy", "category": "missing"}}}}\n'
)
CODE = (
    "import sys;from pathlib import Path;from grpo.config.scenarios import FileSource;"
    "from grpo.scenarios.ingest import ingest;folder=Path(sys.argv[1]);"
    "ingest((FileSource(kind='jsonl',path=str(folder/'million.jsonl')),),folder/'s.parquet',folder/'q.parquet',"
    "max_quarantined_fraction=0.0)"
)


def measure() -> Findings:
    """Scenarios a second, and peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        with (Path(folder) / "million.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(LINE.format(k=k) for k in range(LINES))
        cost = command_cost([sys.executable, "-c", CODE, folder])
    rows = (
        ("scenarios/s", f"{LINES / cost.wall_s:,.0f}"),
        ("scenarios per CPU second", f"{LINES / cost.cpu_s:,.0f}"),
        ("peak memory", f"{cost.peak_mib:,.0f} MiB"),
    )
    return Findings(
        title="Ingest",
        text="1 000 000 JSONL lines read, checked and written to Parquet by a process of its own.",
        tables=(Table(head=("measure", "value"), rows=rows),),
    )
