"""Dry runs of commands: their scratch folders, and the printed plans."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from grpo.registry.promotions import PlannedChange
    from grpo_flows.plans.outline import Outline

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what the command would do, and end without doing it.")
]
_SQLITE = "sqlite:///"


@contextmanager
def scratch_services() -> Iterator[None]:
    """Direct files that Prefect and MLflow create at their first use to a temporary folder while the block runs.

    Prefect makes its home folder when it is imported, and MLflow makes a missing database when it is opened.
    """
    changed = {name: os.environ[name] for name in ("PREFECT_HOME", "MLFLOW_TRACKING_URI")}
    tracking = changed["MLFLOW_TRACKING_URI"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        os.environ["PREFECT_HOME"] = scratch
        if tracking.startswith(_SQLITE) and not Path(tracking.removeprefix(_SQLITE)).is_file():
            os.environ["MLFLOW_TRACKING_URI"] = f"{_SQLITE}{scratch}/mlflow.db"
        try:
            yield
        finally:
            os.environ.update(changed)


def print_outline(console: Console, outline: Outline) -> None:
    """Print the statements of a plan, one per line."""
    console.print(f"dry run of {outline.title}", soft_wrap=True)
    for name, text in outline.facts.items():
        console.print(f"  {name}: {text}", soft_wrap=True)
    console.print("nothing was written or started", soft_wrap=True)


def print_planned_change(console: Console, model: str, plan: PlannedChange, *, force: bool = False) -> bool:
    """Print the aliases before and after a promotion or rollback, and its rules. Returns False if it is refused."""
    if plan.change is None:
        console.print(f"{model}: this version is champion already. Nothing would be changed", soft_wrap=True)
        return True
    action = "promotion" if plan.change.action == "promote" else "rollback"
    console.print(f"dry run of a {action} of {model}", soft_wrap=True)
    for alias, now, then in (
        ("champion", plan.champion, plan.change.champion),
        ("previous", plan.previous, plan.change.previous),
    ):
        console.print(f"  {alias}: {_version(now)} → {_version(then)}", soft_wrap=True)
    console.print("  files: match their digest", soft_wrap=True)
    for rule in plan.rules:
        console.print(f"  {rule.name}: {'yes' if rule.refusal is None else f'no, {rule.refusal}'}", soft_wrap=True)
    for name, value in plan.change.checks.items():
        console.print(f"  gate {name}: {'none' if value is None else f'{value:.4g}'}", soft_wrap=True)
    broken = any(rule.refusal is not None for rule in plan.rules)
    if broken:
        shown = (
            "it would be refused, but --force promotes it"
            if force
            else "it would be refused. Use --force if you want to promote it anyway"
        )
        console.print(shown, soft_wrap=True)
    console.print("nothing was written or started", soft_wrap=True)
    return force or not broken


def _version(number: int | None) -> str:
    return "none" if number is None else f"version {number}"
