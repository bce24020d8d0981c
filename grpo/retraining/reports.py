"""What a retraining saw, did and decided, as one document."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from grpo.config.pipeline import PipelineConfig
from grpo.config.retraining import RetrainConfig
from grpo.retraining.curation import CurationCounts
from grpo.retraining.mixture import MixtureCounts
from grpo.retraining.triggers import TriggerResult

RetrainingVerdict = Literal["nothing to do", "promote", "refuse", "failed"]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TriggerReport(_Document):
    """The reasons, and what they were judged by."""

    model: str
    """Registered model."""
    champion: str | None
    """Name and version in service."""
    results: tuple[TriggerResult, ...]
    """Every reason, whether it holds or not."""
    curation: CurationCounts

    @property
    def fired(self) -> tuple[TriggerResult, ...]:
        """The reasons that hold."""
        return tuple(result for result in self.results if result.fired)

    @property
    def drifted(self) -> bool:
        """Whether the world has moved away from a model that serves; where none does there is none to drift from."""
        return self.champion is not None and bool(self.fired)

    @property
    def summary(self) -> str:
        """One line."""
        if not self.fired:
            return "no reason holds"
        return "; ".join(result.explanation for result in self.fired)


class PendingRetraining(_Document):
    """A retraining that was begun: with it at hand, one that was cut off is taken up where it was."""

    config: RetrainConfig
    triggers: TriggerReport
    mixture: MixtureCounts
    run: PipelineConfig
    """The run of the pipeline that trains."""


class RetrainingReport(_Document):
    """How a retraining ended."""

    name: str
    verdict: RetrainingVerdict
    reason: str
    triggers: TriggerReport
    mixture: MixtureCounts | None = None
    version: str | None = None
    """Name and version that was registered."""
