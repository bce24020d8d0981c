"""What a retraining saw, did and decided, as one document."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from grpo.config.pipeline import PipelineConfig
from grpo.config.retraining import RetrainConfig
from grpo.retraining.intake import IntakeCounts
from grpo.retraining.mixture import MixtureCounts
from grpo.retraining.reasons import Finding

RetrainingVerdict = Literal["nothing to do", "promote", "refuse", "failed"]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Look(_Document):
    """The reasons, and what they were judged by."""

    model: str
    """Registered model."""
    champion: str | None
    """Name and version in service."""
    findings: tuple[Finding, ...]
    """Every reason, whether it holds or not."""
    intake: IntakeCounts

    @property
    def holding(self) -> tuple[Finding, ...]:
        """The reasons that hold."""
        return tuple(finding for finding in self.findings if finding.holds)

    @property
    def drifted(self) -> bool:
        """Whether the world has moved away from a model that serves; where none does there is none to drift from."""
        return self.champion is not None and bool(self.holding)

    @property
    def summary(self) -> str:
        """One line."""
        if not self.holding:
            return "no reason holds"
        return "; ".join(finding.sentence for finding in self.holding)


class Plan(_Document):
    """A retraining that was begun: with it at hand, one that was cut off is taken up where it was."""

    config: RetrainConfig
    look: Look
    mixture: MixtureCounts
    run: PipelineConfig
    """The run of the pipeline that trains."""


class RetrainingRecord(_Document):
    """How a retraining ended."""

    name: str
    verdict: RetrainingVerdict
    reason: str
    look: Look
    mixture: MixtureCounts | None = None
    version: str | None = None
    """Name and version that was registered."""
