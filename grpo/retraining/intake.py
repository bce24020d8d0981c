"""Conversations → those that may be trained on, and for each other one the gate that refused it.

    records ─ schema ─ complete ─ licence ─ consent ─ redaction ─→ seen ─ contamination ─ duplicates ─→ accepted
                └───────┴───────────┴─────────┴──────────────────────────────┴───────────────┴───────→ refused

What is refused leaves its id, the gate and the reason, never its words: who did not agree is not kept.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from grpo.config.retraining import IntakeSettings
from grpo.config.scenarios import Source
from grpo.errors import BudgetError
from grpo.retraining.gates import (
    Complete,
    Consent,
    Contamination,
    Duplicates,
    Gate,
    Incoming,
    Licence,
    Storable,
    spoken,
)
from grpo.retraining.redaction import Redacted
from grpo.scenarios.boundary import excerpt
from grpo.scenarios.parquet import SCHEMA, TableWriter, scenario_row
from grpo.scenarios.readers.catalog import read_records
from grpo.scenarios.readout import Readout, read_out
from grpo.scenarios.refusal import explain
from grpo.scenarios.scenario import Scenario

CONVERSATIONS = "conversations"
"""Kind of the artifact, and the tag by which a version says which conversations there were when it was trained."""
ACCEPTED, SEEN, REFUSED = "accepted.parquet", "seen.parquet", "refused.parquet"
REFUSALS = pa.schema([("record", pa.string()), ("gate", pa.string()), ("reason", pa.string())])


class IntakeCounts(BaseModel):
    """What became of the conversations: `records = accepted + sum(refused)`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    records: int
    accepted: int
    refused: dict[str, int]
    """By gate and kind of reason."""
    redacted: dict[str, int]
    """Different pieces of personal data that were replaced, by kind."""
    redacted_conversations: int


def take_in(
    sources: Sequence[Source],
    folder: Path,
    *,
    known: Iterable[Scenario],
    heldout: Iterable[Scenario],
    settings: IntakeSettings,
) -> IntakeCounts:
    """Read conversations and let them through the gates; writes the three tables into `folder`.

    `known` are the scenarios that are trained on anyway, `heldout` those that nothing may be trained on.
    Raises `BudgetError` where more than `settings.max_unreadable_share` of the records are no scenarios.
    """
    readout = _read(sources)
    _check(readout, settings.max_unreadable_share)
    first: tuple[Gate, ...] = (
        Storable(),
        Complete(settings.needs),
        Licence(settings.licences),
        Consent(settings.consents),
    )
    then: tuple[Gate, ...] = (
        Contamination(heldout, settings.near_duplicate),
        Duplicates(known, settings.near_duplicate),
    )
    refused: Counter[str] = Counter()
    redacted: Counter[str] = Counter()
    accepted = touched = 0
    with (
        TableWriter(folder / ACCEPTED, SCHEMA) as accepted_table,
        TableWriter(folder / SEEN, SCHEMA) as seen_table,
        TableWriter(folder / REFUSED, REFUSALS) as refused_table,
    ):
        for record in readout.quarantined:
            refused[f"schema: {record.refusal.kind}"] += 1
            refused_table.add((excerpt(f"{record.source}:{record.line}"), "schema", record.refusal.kind))
        for item in readout.items:
            raw = Incoming(scenario=item, masked=spoken(item))
            clean, reason = None, _first_refusal(first, raw)
            if reason is None:
                clean, reason = _redacted(item)
            if clean is not None:
                row = scenario_row(clean.scenario)
                redacted.update(clean.found)
                touched += bool(clean.found)
                seen_table.add(*row)
                reason = _first_refusal(then, raw)
            if reason is not None:
                gate, why = reason
                refused[f"{gate}: {why.partition(':')[0]}"] += 1
                refused_table.add((item.id, gate, why))
            elif clean is not None:
                accepted_table.add(*row)
                accepted += 1
    return IntakeCounts(
        records=readout.records,
        accepted=accepted,
        refused=dict(refused.most_common()),
        redacted=dict(redacted.most_common()),
        redacted_conversations=touched,
    )


def _read(sources: Sequence[Source]) -> Readout[Scenario]:
    """Every record of the sources as a scenario, or quarantined; none at all where nobody has spoken yet."""
    records = list(itertools.chain.from_iterable(map(read_records, sources)))
    return read_out(records, Scenario) if records else Readout(items=(), quarantined=())


def _check(readout: Readout[Scenario], bound: float) -> None:
    unreadable = len(readout.quarantined)
    if unreadable > bound * readout.records:
        first = readout.quarantined[0]
        raise BudgetError(
            f"{unreadable} of {readout.records} conversations cannot be read, at most {bound:.1%} may be; first: "
            f"{first.source}:{first.line} {first.refusal.reason}; mend the source or raise intake.max_unreadable_share"
        )


def _redacted(item: Scenario) -> tuple[Redacted, None] | tuple[None, tuple[str, str]]:
    """The conversation without personal data, or the refusal of what is no scenario any more, in none of its words."""
    try:
        return Redacted(item), None
    except ValidationError as error:
        return None, ("redaction", f"no scenario once redacted: {explain(error).reason}")


def _first_refusal(gates: Iterable[Gate], incoming: Incoming) -> tuple[str, str] | None:
    for gate in gates:
        reason = gate.refuse(incoming)
        if reason is not None:
            return gate.name, reason
    return None
