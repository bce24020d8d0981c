"""`grpo retrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from flows.cli.command import ConfigFile, Overrides, console
from flows.cli.errors import REFUSED
from flows.commands.begin import begin
from grpo.config.loading import load_settings
from grpo.config.retraining import RetrainConfig
from grpo.retraining.triggers import TriggerResult


def retrain(
    config: ConfigFile,
    override: Overrides = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Look for triggers, emit grpo.drift-detected if one holds against a champion, train nothing.",
        ),
    ] = False,
) -> None:
    """Train the champion on new conversations if there is a reason to; without one, end in seconds with exit code 0.

    Example: grpo retrain data/configs/retrain.yaml --set curation.near_duplicate_threshold=0.9
    """
    home = begin()
    plan = load_settings(config, RetrainConfig, tuple(override or ()))
    from flows.local.servers import prefect_server

    with prefect_server(home) as url:
        console.print(f"run {plan.name}: Prefect at {url}, records in {home}")
        verdict = _watch(plan) if check else _retrain(plan, home)
    if verdict == "refuse":
        raise typer.Exit(REFUSED)


def _watch(plan: RetrainConfig) -> str:
    from flows.cli.display import live
    from flows.watch import EVENT, watch

    with live(console):
        found = watch(plan)
    _show(found.results)
    console.print(f"{EVENT} emitted" if found.drifted else found.summary, soft_wrap=True)
    return "watched"


def _retrain(plan: RetrainConfig, home: Path) -> str:
    from flows.cli.display import live
    from flows.retrain import retrain as flow

    with live(console, iterations=1):
        ended = flow(plan)
    _show(ended.triggers.results)
    curation = ended.triggers.curation
    console.print(f"{curation.records} conversations: {curation.accepted} accepted")
    for why, count in curation.rejected.items():
        console.print(f"  {count} × {why}")
    for kind, count in curation.redacted.items():
        console.print(f"  {count} × {kind} redacted")
    console.print(f"{ended.verdict}: {ended.reason}", soft_wrap=True)
    console.print(f"record: {home / plan.name / 'retraining.json'}", soft_wrap=True)
    return str(ended.verdict)


def _show(results: tuple[TriggerResult, ...]) -> None:
    table = Table("reason", "holds", "what", title="triggers", title_justify="left")
    for one in results:
        table.add_row(one.reason, Text("yes", "green") if one.fired else "no", one.explanation)
    console.print(table)
