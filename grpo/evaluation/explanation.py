"""Explanation of a run that does not learn, as part of its report."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Diagnosis(_Part):
    """One cause that hinders learning, see `grpo.diagnosis`."""

    kind: str
    """Name of the cause, such as `truncation`."""
    certainty: Literal["certain", "likely", "possible"]
    """`certain`: the measurement has no other explanation. `likely`: it rarely has. `possible`: it is worth a try."""
    measured: str
    """The measurement, with its number and bound."""
    meaning: str
    """Its effect on learning."""
    change: str
    """Setting and value, or the part of the reward or the environment to correct."""
    command: str
    """Command that tries the change, or that shows the episodes. CONFIG stands for the YAML file of the run."""


class Explanation(_Part):
    """Answer to the question why a run does not learn."""

    diagnoses: tuple[Diagnosis, ...]
    """The most certain first. Empty if nothing hinders learning."""
    measurements: dict[str, str]
    """All measured values by name, including values that are not a cause."""
    unread: tuple[str, ...] = ()
    """Episodes that could not be read, with the reason. Diagnoses that need them are missing."""

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        if self.diagnoses:
            count = len(self.diagnoses)
            return "1 cause hinders learning." if count == 1 else f"{count} causes hinder learning."
        return "Some episodes could not be read." if self.unread else "Nothing that hinders learning was measured."
