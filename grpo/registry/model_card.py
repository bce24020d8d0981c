"""Model cards in Markdown for a version, for a registered model in MLflow, and for an exported folder.

MLflow keeps at most 5,000 characters of a description, so longer parts are cut. Names, ids and reasons are escaped,
because they come from configs and scenarios of strangers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from grpo.registry.markdown import escaped, table

if TYPE_CHECKING:
    from grpo.policy.weights.promotion_records import ChampionChange
    from grpo.registry.provenance import Estimate, HeldOut, Provenance

MAX_DESCRIPTION = 5000
_MOST_ROWS, _MOST_SOURCES, _MOST_GATE_TEXT, _MOST_REASON = 20, 4, 1200, 300


def version_card(name: str, provenance: Provenance, verdict: str, *, run: str, address: str) -> str:
    """Card of a version: result, task and data, gates, limits, use, and the run, given as a link in Markdown."""
    parts = [
        *result(provenance, verdict),
        *task_and_data(provenance),
        *limits(provenance),
        "### Use",
        _indented(
            (
                f"grpo export {address} {name}    # a Hugging Face folder. Its README.md has the command for vLLM",
                f"grpo lineage {address}    # data, code, ancestors and promotions",
            )
        ),
        f"Training run: {run}",
    ]
    return "\n\n".join(parts)


def model_description(
    name: str, *, champion: int | None, change: ChampionChange | None, newest: int, card: str, moved: str | None = None
) -> str:
    """Description of a registered model: its champion, since when and why, and the card of that version.

    Without a champion, `card` is the card of the newest version. `moved` is a sentence that is given if the alias was
    moved by hand.
    """
    if champion is None:
        opening = f"**No version of {escaped(name)} is in service.**"
    else:
        since = ""
        if change is not None and change.champion == champion:
            made = "promoted" if change.action == "promote" else "restored by a rollback"
            forced = ", against a gate" if change.forced else ""
            reason = escaped(change.reason, limit=_MOST_REASON)
            since = f", {made} {escaped(change.at[:16].replace('T', ' '))} UTC{forced}: {reason}"
        opening = f"**Champion: version {champion}**{since}"
    if moved is not None:
        opening = f"{opening}\n\n**{escaped(moved, limit=_MOST_REASON)}**"
    text = f"{opening}\n\n## Version {champion or newest}\n\n{card}" if card else opening
    return text if len(text) <= MAX_DESCRIPTION else opening


def result(provenance: Provenance, verdict: str) -> Iterator[str]:
    """Verdict, held-out results of the version and of the champion, and gates."""
    yield f"**{escaped(verdict)}**: {escaped(provenance.decision, limit=_MOST_REASON)}"
    if provenance.heldout is not None:
        yield _heldout(provenance.heldout)
    if provenance.checks:
        rows = list(_gate_rows(provenance))
        yield "### Gates"
        yield table(("gate", "value", "must be", "passed"), rows)
        if more := len(provenance.checks) - len(rows):
            yield f"{more} more in the report."


def task_and_data(provenance: Provenance) -> Iterator[str]:
    """Environment, scenario sources, base model and training."""
    config = provenance.config
    training, environment, policy = (_mapping(config.get(part)) for part in ("training", "environment", "policy"))
    described = [escaped(source_text(source), limit=120) for source in _sources(config)]
    shown = "; ".join(described[:_MOST_SOURCES]) or "unknown"
    more = f" and {len(described) - _MOST_SOURCES} more" if len(described) > _MOST_SOURCES else ""
    task = environment.get("object") or environment.get("id") or environment.get("kind") or "unknown"
    yield "### Task and data"
    yield "\n".join(
        (
            f"- Environment: {escaped(str(task))}",
            f"- Scenarios: {shown}{more}",
            f"- Base model: {escaped(str(policy.get('model', 'unknown')), limit=160)}",
            f"- Training: {escaped(str(training.get('algorithm', 'grpo')).upper())}, "
            f"{len(provenance.policies) - 1} iterations, seed {provenance.seed}",
        )
    )


def limits(provenance: Provenance) -> Iterator[str]:
    """Statements about what was not measured."""
    heldout = provenance.heldout
    count = "" if heldout is None else f"{heldout.scenarios} "
    unsafe = "" if any("safety" in name for name in provenance.checks) else " No gate checked the safety of replies."
    yield "### Limits"
    yield (
        f"Measured on {count}held-out scenarios of this task and the users of its environment. Other tasks, "
        f"languages and users were not measured.{unsafe}"
    )


def _heldout(heldout: HeldOut) -> str:
    def row(policy: str, estimate: Estimate) -> tuple[str, ...]:
        return policy, f"{estimate.mean:.3f}", f"{estimate.low:.3f} to {estimate.high:.3f}"

    header = ("policy", f"held-out {heldout.metric}", f"{100 * heldout.confidence:.4g} % interval")
    rows = (row("this version", heldout.candidate), row("the champion before it, or the base", heldout.champion))
    return table(header, rows) + f"\n\nOver {heldout.scenarios} scenarios that were not trained on."


def _gate_rows(provenance: Provenance) -> Iterator[tuple[str, ...]]:
    """Rows of the gates, as many as there is room for. Gates that failed come first."""
    room = _MOST_GATE_TEXT
    for name in sorted(provenance.checks, key=lambda name: name not in provenance.failed_gates)[:_MOST_ROWS]:
        value, condition = provenance.checks[name], provenance.conditions.get(name)
        passed = "unknown" if condition is None else "**no**" if name in provenance.failed_gates else "yes"
        row = (
            escaped(name, limit=100),
            "none" if value is None else f"{value:.4g}",
            escaped(condition or "unknown", limit=40),
            passed,
        )
        room -= sum(map(len, row))
        if room < 0:
            return
        yield row


def _sources(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    sources = _mapping(config.get("scenarios")).get("sources")
    return [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []


def source_text(source: Mapping[str, Any]) -> str:
    """Kind of a scenario source in a config, and its path, function or taskset."""
    named = source.get("path") or source.get("object") or source.get("id") or source.get("name") or ""
    return f"{source.get('kind', '')} {named}".strip()


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
