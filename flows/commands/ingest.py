"""`grpo ingest`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import ConfigFile, Overrides, console
from flows.commands.begin import begin
from grpo.config.pipeline import load_config


def ingest(
    config: ConfigFile,
    override: Overrides = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where tables and Data Docs are written; by default `ingest` in GRPO_HOME.")
    ] = None,
) -> None:
    """Read, validate and split the scenarios of a config, and train nothing.

    Example: grpo ingest data/configs/quickstart.yaml --folder runs/ingest
    """
    home = begin(services=False)
    folder = folder or home / "ingest"
    plan = load_config(config, tuple(override or ())).scenarios
    from grpo.scenarios import expectations, split
    from grpo.scenarios.ingest import QUARANTINE_FILE, SCENARIOS_FILE
    from grpo.scenarios.ingest import ingest as read

    folder.mkdir(parents=True, exist_ok=True)
    tables = folder / SCENARIOS_FILE, folder / QUARANTINE_FILE
    counts = read(plan.sources, *tables, max_quarantined_fraction=plan.max_quarantined_fraction)
    console.print(f"{counts.records} records: {counts.scenarios} scenarios, {counts.quarantined} quarantined")
    for reason, count in counts.reasons.items():
        console.print(f"  {count} × {reason}")
    docs = folder / "data_docs"
    suite = expectations.validate(tables[0], docs, validation_fraction=plan.validation_fraction)
    console.print(f"{len(suite.checks) - len(suite.warnings)} expectations hold; {docs / suite.docs_index}")
    sides = split.split(tables[0], validation_fraction=plan.validation_fraction, limit=plan.limit)
    console.print(f"{len(sides.train)} to train on, {len(sides.heldout)} held out")
