"""Filters of conversations before training; a rejection has its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from grpo.scenarios.data_errors import try_call
from grpo.scenarios.near_duplicates import NearDuplicates
from grpo.scenarios.pii import mask_pii
from grpo.scenarios.quarantine import reason_from_error
from grpo.scenarios.scenario import Scenario
from grpo.scenarios.table import scenario_row


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingConversation:
    """A conversation to be filtered."""

    scenario: Scenario
    masked: str
    """User text with personal data masked, as it is compared with others."""


def masked_user_text(scenario: Scenario) -> str:
    """User responses and goal of a scenario, with personal data masked."""
    return mask_pii("\n".join((*scenario.user_responses, scenario.goal)))


class Filter(Protocol):
    """Interface of a filter."""

    name: str

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Return the reason of a rejection, or None; the part before a colon is its kind, by which it is counted."""
        ...


class SchemaFilter:
    """Reject records that cannot be stored as JSON."""

    name = "schema"

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Name the kind of error, without the text that has it."""
        row = try_call(lambda: scenario_row(incoming.scenario))
        return reason_from_error(row).kind if isinstance(row, Exception) else None


class RequiredFieldsFilter:
    """Reject a conversation without a required field."""

    name = "required_fields"

    def __init__(self, fields: Iterable[str]) -> None:
        self._fields = tuple(fields)

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Name the first empty field."""
        fields = incoming.scenario.model_dump(exclude_defaults=True)
        missing = [name for name in self._fields if not fields.get(name)]
        return f"no {missing[0]}" if missing else None


class LicenceFilter:
    """Reject a conversation whose licence is not in the allow-list."""

    name = "licence"

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(allowed)

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Name the licence."""
        licence = incoming.scenario.metadata.licence
        if not licence:
            return "no licence"
        return None if licence in self._allowed else f"licence not allowed: {licence}"


class ConsentFilter:
    """Reject a conversation whose user did not consent to training."""

    name = "consent"

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(allowed)

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Name the consent; a missing one is never enough."""
        consent = incoming.scenario.metadata.consent
        if not consent:
            return "no consent"
        return None if consent in self._allowed else f"consent not allowed: {consent}"


class ContaminationFilter:
    """Reject a conversation that is similar to a held-out scenario."""

    name = "contamination"

    def __init__(self, heldout: Iterable[Scenario], threshold: float) -> None:
        self._index = NearDuplicates(threshold)
        for scenario in heldout:
            self._index.add(scenario.id, masked_user_text(scenario))

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Name the similar held-out scenario; a held-out scenario itself passes."""
        match = self._index.find(incoming.masked)
        if match is None or match.name == incoming.scenario.id:
            return None
        return f"like a held-out scenario: {match.name}, similarity {match.similarity:.2f}"


class DuplicateFilter:
    """Reject near-duplicates of training scenarios and of earlier conversations; of several the first passes."""

    name = "duplicates"

    def __init__(self, known: Iterable[Scenario], threshold: float) -> None:
        self._index = NearDuplicates(threshold)
        for scenario in known:
            self._index.add(scenario.id, masked_user_text(scenario))

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Name the similar scenario or conversation; without one, add the conversation to the index."""
        match = self._index.find(incoming.masked)
        if match is None:
            self._index.add(incoming.scenario.id, incoming.masked)
            return None
        kind = "duplicate of" if match.similarity == 1 else "near-duplicate of"
        return f"{kind}: {match.name}, similarity {match.similarity:.2f}"
