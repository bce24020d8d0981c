"""What a conversation must pass on its way into training; each gate says why it refuses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from grpo.retraining.pii import mask_pii
from grpo.scenarios.data_errors import try_call
from grpo.scenarios.near_duplicates import NearDuplicates
from grpo.scenarios.quarantine import reason_from_error
from grpo.scenarios.scenario import Scenario
from grpo.scenarios.table import scenario_row


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingConversation:
    """A conversation on its way in."""

    scenario: Scenario
    masked: str
    """What its user says or wants, with personal data masked: what is compared with others."""


def masked_user_text(scenario: Scenario) -> str:
    """What the user of a scenario says or wants, without personal data."""
    return mask_pii("\n".join((*scenario.user_responses, scenario.goal)))


class Filter(Protocol):
    """One condition."""

    name: str

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Why this conversation is not taken; None lets it pass. What stands before a colon is counted together."""
        ...


class SchemaFilter:
    """Its records can be stored as JSON and read back."""

    name = "schema"

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Names the kind of fault, without the words that have it."""
        row = try_call(lambda: scenario_row(incoming.scenario))
        return reason_from_error(row).kind if isinstance(row, Exception) else None


class RequiredFieldsFilter:
    """Parts that the environment and its rewards need are there."""

    name = "complete"

    def __init__(self, needs: Iterable[str]) -> None:
        self._needs = tuple(needs)

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Names the first part that is empty."""
        fields = incoming.scenario.model_dump(exclude_defaults=True)
        missing = [name for name in self._needs if not fields.get(name)]
        return f"no {missing[0]}" if missing else None


class LicenceFilter:
    """Its licence allows training."""

    name = "licence"

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(allowed)

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Only what is on the list passes."""
        licence = incoming.scenario.metadata.licence
        if not licence:
            return "no licence"
        return None if licence in self._allowed else f"licence not allowed: {licence}"


class ConsentFilter:
    """Its user agreed."""

    name = "consent"

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(allowed)

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Silence is no consent, whatever the list says."""
        consent = incoming.scenario.metadata.consent
        if not consent:
            return "no consent"
        return None if consent in self._allowed else f"consent to something else: {consent}"


class ContaminationFilter:
    """It says nothing that the held-out scenarios ask."""

    name = "contamination"

    def __init__(self, heldout: Iterable[Scenario], threshold: float) -> None:
        self._index = NearDuplicates(threshold)
        for scenario in heldout:
            self._index.add(scenario.id, masked_user_text(scenario))

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Names the held-out scenario that it is like; one that is held out itself is like itself, and passes."""
        like = self._index.find(incoming.masked)
        if like is None or like.name == incoming.scenario.id:
            return None
        return f"like a held-out scenario: {like.name}, similarity {like.similarity:.2f}"


class DuplicateFilter:
    """Nobody said nearly the same before: of several alike the first passes."""

    name = "duplicates"

    def __init__(self, known: Iterable[Scenario], threshold: float) -> None:
        self._index = NearDuplicates(threshold)
        for scenario in known:
            self._index.add(scenario.id, masked_user_text(scenario))

    def reject(self, incoming: IncomingConversation) -> str | None:
        """Names the scenario or conversation that it is like, and remembers it where there is none."""
        like = self._index.find(incoming.masked)
        if like is None:
            self._index.add(incoming.scenario.id, incoming.masked)
            return None
        kind = "says the same as" if like.similarity == 1 else "says nearly the same as"
        return f"{kind}: {like.name}, similarity {like.similarity:.2f}"
