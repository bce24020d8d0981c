"""Filters of conversations before training. Each rejection has a reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from grpo.data_errors import try_call
from grpo.scenario import Scenario
from grpo.scenarios.pii import mask_pii
from grpo.scenarios.quarantine import reason_from_error
from grpo.scenarios.table import scenario_row


def masked_user_text(scenario: Scenario) -> str:
    """User responses and goal of a scenario, with personal data masked."""
    return mask_pii(user_text(scenario.user_responses, scenario.goal))


def user_text(responses: Iterable[str], goal: str) -> str:
    """User responses and goal in one text."""
    return "\n".join((*responses, goal))


class Filter(Protocol):
    """Interface of a filter."""

    name: str

    def reject(self, conversation: Scenario) -> str | None:
        """Return the reason of a rejection, or None. Rejections are counted by the part before the colon."""
        ...


class SchemaFilter:
    """Reject records that cannot be stored as JSON."""

    name = "schema"

    def reject(self, conversation: Scenario) -> str | None:
        """Name the kind of error, without the text that has it."""
        row = try_call(lambda: scenario_row(conversation))
        return reason_from_error(row).kind if isinstance(row, Exception) else None


class RequiredFieldsFilter:
    """Reject a conversation without a required field."""

    name = "required_fields"

    def __init__(self, fields: Iterable[str]) -> None:
        self._fields = tuple(fields)

    def reject(self, conversation: Scenario) -> str | None:
        """Name the first empty field."""
        fields = conversation.model_dump(exclude_defaults=True)
        missing = [name for name in self._fields if not fields.get(name)]
        return f"no {missing[0]}" if missing else None


class LicenceFilter:
    """Reject a conversation if its licence is not in the allow-list."""

    name = "licence"

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(allowed)

    def reject(self, conversation: Scenario) -> str | None:
        """Name the licence."""
        licence = conversation.metadata.licence
        if not licence:
            return "no licence"
        return None if licence in self._allowed else f"licence not allowed: {licence}"


class ConsentFilter:
    """Reject a conversation if its user did not consent to training."""

    name = "consent"

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(allowed)

    def reject(self, conversation: Scenario) -> str | None:
        """Name the consent. A missing consent is never enough."""
        consent = conversation.metadata.consent
        if not consent:
            return "no consent"
        return None if consent in self._allowed else f"consent not allowed: {consent}"
