"""What registered versions look like in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from flows.reproduce import Reproduction
    from grpo.registry import ChampionChange, Lineage


def print_change(console: Console, model: str, change: ChampionChange | None) -> None:
    """Who serves now."""
    if change is None:
        console.print(f"{model}: this version serves already; nothing was changed")
        return
    instead = f" in place of version {change.replaced}" if change.replaced is not None else ""
    forced = ", forced" if change.forced else ""
    console.print(
        f"{model}: version {change.champion} serves{instead}{forced} ({change.reason})",
        soft_wrap=True,
    )


def print_lineage(console: Console, lineage: Lineage) -> None:
    """What a version was made from, who came before it, and how it came to serve."""
    made = lineage.provenance
    judged = "the base model" if lineage.evaluated_against is None else f"version {lineage.evaluated_against}"
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
    lines = [f"{lineage.name} version {lineage.version}", *(f"  {name:<18}{value}" for name, value in facts.items())]
    lines += [f"  brought in        {name}: {digest[:16]}" for name, digest in made.external_digests.items()]
    for depth, parent in enumerate(lineage.parents):
        origin = f"version {parent.version}" if parent.version is not None else f"base model {parent.model}"
        lines.append(f"{'  ' * depth}trained from policy {parent.policy}, {origin}")
    lines += [_told(one) for one in lineage.history] or ["no version of this model has served"]
    if lineage.pending is not None:
        lines.append(f"pending, the next promotion or rollback settles it: {_told(lineage.pending)}")
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print(
        f"the whole config: grpo lineage models:/{lineage.name}/{lineage.version} --json",
        soft_wrap=True,
    )


def _told(one: ChampionChange) -> str:
    """One change of the version in service, on a line."""
    instead = f" instead of {one.replaced}" if one.replaced is not None else ""
    forced = ", forced" if one.forced else ""
    who = f"{one.by.user}@{one.by.host}" + (f", flow run {one.by.run}" if one.by.run else "")
    return f"{one.at} {one.action}{forced}: version {one.champion}{instead}, by {who}: {one.reason}"


def print_reproduction(console: Console, result: Reproduction) -> None:
    """Whether the weights are the same, and what differs if not."""
    for name, (then, now) in result.differences.items():
        console.print(f"{name}: was {then}, is {now}", soft_wrap=True)
    if result.equal:
        console.print(f"{result.model}: the same weights, policy {result.found[-1]}", soft_wrap=True)
        return
    first = next(iter(result.differences), "nothing that is written down")
    console.print(
        f"{result.model}: other weights from iteration {result.first_iteration} on; policy {result.expected[-1]} was "
        f"registered, {result.found[-1]} came out; what differs first: {first}",
        soft_wrap=True,
    )


def _mappings(value: object) -> list[dict[str, object]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
