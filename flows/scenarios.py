"""Scenarios on their way into a run: read, checked, split."""

from __future__ import annotations

from dataclasses import dataclass

from flows.ledger import Ledger
from grpo.config.environments import EnvironmentSettings
from grpo.config.scenarios import ScenarioSettings
from grpo.scenarios.sources import content_hash
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
    validation_fraction: float | None = None,
    environment: EnvironmentSettings | None = None,
) -> ReadScenarios:
    """Ingest, validate and split; a `validation_fraction` of 1 holds out all that are not declared to be trained on.

    What the environment cannot play, where one is given, is left out or refused before anything is played.
    """
    bound = settings.max_quarantined_fraction
    data = ledger.run(
        ingest,
        sources=settings.sources,
        content=content_hash(settings.sources),
        max_quarantined_fraction=bound,
        store=store,
    )
    fraction = settings.validation_fraction if validation_fraction is None else validation_fraction
    validated = ledger.run(validate, scenarios=data.scenarios, validation_fraction=fraction, store=store)
    sides = ledger.run(
        split,
        scenarios=data.scenarios,
        validation_fraction=fraction,
        limit=settings.limit,
        environment=environment,
        max_refused_share=bound,
        store=store,
    )
    return ReadScenarios(data=data, validated=validated, sides=sides)
