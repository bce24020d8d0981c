"""What a candidate must show before it may serve: a list of gates, every one of which must pass."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from grpo.config.base import Settings


def _ids(value: object) -> object:
    """The lines of a file in place of its name, so that a config holds what it was judged by."""
    if not isinstance(value, str):
        return value
    try:
        lines = Path(value).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"no file of scenario ids at {value}: {error}") from error
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))


Metric = Literal["success", "reward"]


class ImprovementGate(Settings):
    """The candidate is better than the champion, beyond chance."""

    kind: Literal["improvement"] = "improvement"
    """Chooses this gate."""
    metric: Metric = "success"
    """What is compared: the verified outcome, or the reward where nothing can be verified."""
    margin: float = 0.0
    """The lower bound of the paired difference must exceed this; below 0 it allows a loss of so much."""


class CategoryGate(Settings):
    """No category pays for the others."""

    kind: Literal["category"] = "category"
    """Chooses this gate."""
    metric: Metric = "success"
    """What is compared: the verified outcome, or the reward where nothing can be verified."""
    max_drop: float = Field(default=0.1, ge=0)
    """No category may fall by more."""
    max_drop_by_category: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Another `max_drop` for a category, by its name."""
    confidence: float = Field(default=0.8, gt=0.5, lt=1)
    """How sure a fall must be, one-sided: small categories move by chance."""


class PassGate(Settings):
    """The candidate succeeds every time: pass^k, the share of scenarios where each of k tries succeeds."""

    kind: Literal["pass_hat_k"] = "pass_hat_k"
    """Chooses this gate."""
    k: int = Field(ge=1)
    """Tries of a scenario, at most `evaluation.samples`."""
    floor: float = Field(gt=0, lt=1)
    """The lower bound of pass^k, at the confidence of the evaluation, must reach this, whatever the champion does."""


class SafetyGate(Settings):
    """The candidate's replies are safe, by the safety reward."""

    kind: Literal["safety"] = "safety"
    """Chooses this gate."""
    floor: float = Field(default=0.5, ge=0, le=1)
    """An episode whose least safe reply scores less is unsafe."""
    max_rate: float = Field(default=0.0, ge=0, le=1)
    """Most unsafe episodes of the candidate."""
    model: str | None = None
    """Folder of a learned safety reward; none for the shipped one."""


class MustPassGate(Settings):
    """Scenarios that the candidate may never get wrong."""

    kind: Literal["must_pass"] = "must_pass"
    """Chooses this gate."""
    scenarios: Annotated[tuple[str, ...], BeforeValidator(_ids), Field(min_length=1)]
    """Ids of held-out scenarios, or a text file with one a line; every episode of each must succeed."""


class KLGate(Settings):
    """The candidate stays near the base policy."""

    kind: Literal["kl"] = "kl"
    """Chooses this gate."""
    max_nats: float = Field(default=5.0, gt=0)
    """Most KL divergence to the base policy, nats a token."""


class LengthGate(Settings):
    """The candidate does not buy its score with words."""

    kind: Literal["length"] = "length"
    """Chooses this gate."""
    max_ratio: float = Field(default=2.0, gt=0)
    """Most tokens said in an episode, over the champion's."""


class TruncationGate(Settings):
    """Few episodes are cut off."""

    kind: Literal["truncation"] = "truncation"
    """Chooses this gate."""
    max_rate: float = Field(default=0.02, ge=0, le=1)
    """Most episodes of the candidate that were cut off."""


class FailureGate(Settings):
    """Few episodes fail."""

    kind: Literal["failure"] = "failure"
    """Chooses this gate."""
    max_rate: float = Field(default=0.02, ge=0, le=1)
    """Most episodes of the candidate that ended in an error."""


class LatencyGate(Settings):
    """A user does not wait too long for a turn, on hardware of a speed that is known."""

    kind: Literal["latency"] = "latency"
    """Chooses this gate."""
    max_p95_s: float = Field(gt=0)
    """Longest wait for the agent's turn, tool calls included, in 95 of 100 turns."""
    tokens_per_s: float = Field(gt=0)
    """Tokens a second that one conversation gets from the server that will serve."""


GateSettings = Annotated[
    ImprovementGate
    | CategoryGate
    | PassGate
    | SafetyGate
    | MustPassGate
    | KLGate
    | LengthGate
    | TruncationGate
    | FailureGate
    | LatencyGate,
    Field(discriminator="kind"),
]

DEFAULT_GATES: tuple[GateSettings, ...] = (
    ImprovementGate(),
    CategoryGate(),
    KLGate(),
    FailureGate(),
    TruncationGate(),
    LengthGate(),
)


def compared_metric(gates: tuple[GateSettings, ...]) -> Metric:
    """The metric that these gates are about: that of the first one that compares."""
    return next((gate.metric for gate in gates if isinstance(gate, (ImprovementGate, CategoryGate))), "success")
