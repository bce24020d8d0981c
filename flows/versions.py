"""What registered versions look like in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from flows.reproduce import Reproduction
    from grpo.registry import Lineage, Transition


def print_transition(console: Console, model: str, transition: Transition | None) -> None:
    """Who serves now."""
    if transition is None:
        console.print(f"{model}: this version serves already; nothing was changed")
        return
    instead = f" in place of version {transition.replaced}" if transition.replaced is not None else ""
    forced = ", forced" if transition.forced else ""
    console.print(
        f"{model}: version {transition.champion} serves{instead}{forced} ({transition.reason})",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def print_lineage(console: Console, lineage: Lineage) -> None:
    """What a version was made from, who came before it, and how it came to serve."""
    made = lineage.provenance
    judged = "the base model" if lineage.judged_against is None else f"version {lineage.judged_against}"
    scenarios = made.config["scenarios"]
    sources = scenarios["sources"] if isinstance(scenarios, dict) else None
    facts = {
        "policy": made.policies[-1],
        "aliases": ", ".join(lineage.aliases) or "none",
        "verdict": f"{lineage.tags.get('verdict')}: {made.decision}",
        "gates": ", ".join(f"{name} {'none' if v is None else f'{v:.4g}'}" for name, v in made.checks.items()),
        "judged against": f"{judged}, policy {made.champion}",
        "sources": "; ".join(f"{one.get('kind')} {one.get('path', '')}".strip() for one in _mappings(sources)),
        "sources digest": made.sources,
        "scenarios digest": made.scenarios,
        "base model digest": made.model,
        "code": f"{made.code}, commit {made.commit or 'unknown'}",
        "seed": str(made.seed),
        "packages": ", ".join(f"{name} {version}" for name, version in made.packages.items()),
        "machine": ", ".join(f"{name} {value}" for name, value in made.machine.items()),
        "iterations": str(len(made.policies) - 1),
        "MLflow run": lineage.run_id,
    }
    table = Table(show_header=False, title=f"{lineage.name} version {lineage.version}", title_justify="left")
    for name, value in facts.items():
        table.add_row(name, Text(value))
    console.print(table)
    for depth, parent in enumerate(lineage.parents):
        origin = f"version {parent.version}" if parent.version is not None else f"base model {parent.model}"
        console.print(Text(f"{'  ' * depth}trained from policy {parent.policy}, {origin}"), soft_wrap=True)
    history = Table(
        "#", "when", "what", "version", "instead of", "who", "why", title="in service", title_justify="left"
    )
    for one in lineage.history:
        who = f"{one.by.user}@{one.by.host}" + (f" run {one.by.run}" if one.by.run else "")
        what = f"{one.action}, forced" if one.forced else one.action
        replaced = "" if one.replaced is None else str(one.replaced)
        history.add_row(str(one.number), one.at, what, str(one.champion), replaced, Text(who), Text(one.reason))
    console.print(history if lineage.history else "no version of this model has served")
    console.print(f"the whole config: grpo lineage models:/{lineage.name}/{lineage.version} --json", highlight=False)


def print_reproduction(console: Console, result: Reproduction) -> None:
    """Whether the weights are the same, and what differs if not."""
    for name, (then, now) in result.differences.items():
        console.print(Text(f"{name}: was {then}, is {now}"), soft_wrap=True)
    if result.equal:
        console.print(f"{result.model}: the same weights, policy {result.found[-1]}", highlight=False, soft_wrap=True)
        return
    first = next(iter(result.differences), "nothing that is written down")
    console.print(
        f"{result.model}: other weights from iteration {result.first_iteration} on; policy {result.expected[-1]} was "
        f"registered, {result.found[-1]} came out; what differs first: {first}",
        highlight=False,
        soft_wrap=True,
    )


def _mappings(value: object) -> list[dict[str, object]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
