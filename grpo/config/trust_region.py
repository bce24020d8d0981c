"""The step of trpo."""

from __future__ import annotations

from pydantic import Field

from grpo.config.base import Settings


class TrustRegionSettings(Settings):
    """How far a natural step goes, and how it is found."""

    max_kl: float = Field(default=0.01, gt=0)
    """Most KL(old ‖ new) of a step, nats a token."""
    damping: float = Field(default=0.1, ge=0)
    """Added to the diagonal of the Fisher matrix."""
    conjugate_gradient_steps: int = Field(default=10, ge=1)
    """Iterations of the conjugate gradient."""
    line_search_steps: int = Field(default=10, ge=1)
    """Shorter steps tried before the policy is left as it is."""
