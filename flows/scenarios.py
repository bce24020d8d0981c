"""Scenarios on their way into a run: read, checked, split."""

from __future__ import annotations

from dataclasses import dataclass

from flows.ledger import Ledger
from grpo.config.environments import EnvironmentSettings
from grpo.config.scenarios import ScenarioSettings
from grpo.scenarios.fingerprint import fingerprint
from tasks.ingest import IngestResult, ingest
from tasks.split import SplitResult, split
from tasks.validate import ValidateResult, validate


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadScenarios:
    """What the three stages left."""

    data: IngestResult
    validated: ValidateResult
    sides: SplitResult


def prepare_scenarios(
    settings: ScenarioSettings,
    ledger: Ledger,
    store: str,
    *,
    heldout_share: float | None = None,
    environment: EnvironmentSettings | None = None,
) -> ReadScenarios:
    """Ingest, validate and split; a `heldout_share` of 1 holds out all that are not declared to be trained on.

    What the environment cannot play, where one is given, is left out or refused before anything is played.
    """
    bound = settings.max_quarantined_share
    data = ledger.run(
        ingest,
        sources=settings.sources,
        content=fingerprint(settings.sources),
        max_quarantined_share=bound,
        store=store,
    )
    validated = ledger.run(
        validate, scenarios=data.scenarios, counts=data.counts, max_quarantined_share=bound, store=store
    )
    sides = ledger.run(
        split,
        scenarios=data.scenarios,
        heldout_share=settings.heldout_share if heldout_share is None else heldout_share,
        limit=settings.limit,
        environment=environment,
        max_refused_share=bound,
        store=store,
    )
    return ReadScenarios(data=data, validated=validated, sides=sides)
