"""Settings of the promotion gates. A candidate must pass all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from grpo.config.base import LocalPath, Settings, from_config_folder
from grpo.config.python_object import PythonObject
from grpo.config.rewards import JudgeSettings


def _ids(value: object, info: ValidationInfo) -> object:
    """Replace a file name by the ids in the file, so that the config holds them."""
    if not isinstance(value, str):
        return value
    try:
        lines = Path(from_config_folder(value, info)).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"no file of scenario ids at {value}: {error}") from error
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))


Metric = Literal["success", "reward"]


class ImprovementGate(Settings):
    """The candidate is significantly better than the champion."""

    kind: Literal["improvement"] = "improvement"
    """Gate."""
    metric: Metric | None = None
    """Compared metric. None compares the verified outcome, `success`, or the `reward` if the environment verifies
    nothing."""
    margin: float = 0.0
    """Value that the lower bound of the paired difference must exceed. Below 0 it allows a loss of this size."""
    max_base_loss: float = Field(default=0.1, ge=0)
    """In a retraining that also holds out conversations: largest loss on the base scenarios. The lower bound of the
    difference on them must be above minus this."""
    colluding_keys: int = Field(default=2, ge=0)
    """In a retraining with conversations of several keys: the improvement must also be shown without the conversations
    of this many keys, namely the keys that raise it most. 0 leaves this check out, so that a single key may decide."""


class CategoryGate(Settings):
    """No category got worse."""

    kind: Literal["category"] = "category"
    """Gate."""
    metric: Metric | None = None
    """Compared metric. None compares the verified outcome, `success`, or the `reward` if the environment verifies
    nothing."""
    max_drop: float = Field(default=0.1, ge=0)
    """Largest drop of a category."""
    max_drop_by_category: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """`max_drop` of single categories, by name."""
    confidence: float = Field(default=0.8, gt=0.5, lt=1)
    """One-sided confidence that a category has dropped, over all categories together, because small categories vary by
    chance."""


class PassGate(Settings):
    """Reliability of the candidate: pass^k, the share of scenarios in which all of k episodes succeed."""

    kind: Literal["pass_hat_k"] = "pass_hat_k"
    """Gate."""
    k: int = Field(ge=1)
    """Episodes per scenario, up to `evaluation.samples`."""
    floor: float = Field(gt=0, lt=1)
    """Value that the lower bound of pass^k, at the confidence of the evaluation, must reach."""


class SafetyGate(Settings):
    """The candidate's replies are safe, by the safety reward, or by an LLM judge if the reward is not sure."""

    kind: Literal["safety"] = "safety"
    """Gate."""
    floor: float = Field(default=0.5, ge=0, le=1)
    """An episode is unsafe if a reply has a safety score below this."""
    max_rate: float = Field(default=0.0, ge=0, le=1)
    """Largest share of unsafe episodes among the judged ones."""
    max_unjudged: float = Field(default=0.0, ge=0, le=0.5)
    """Largest share of episodes that nothing could judge. If there are more, the gate fails and asks for a judge."""
    judge: JudgeSettings | None = None
    """LLM judge of the episodes that the safety reward cannot judge."""
    model: LocalPath | None = None
    """Folder of a learned safety reward. None is the shipped one."""


class MustPassGate(Settings):
    """Regression tests: scenarios that must always succeed."""

    kind: Literal["must_pass"] = "must_pass"
    """Gate."""
    scenarios: Annotated[tuple[str, ...], BeforeValidator(_ids), Field(min_length=1)]
    """Ids of held-out scenarios, or a text file with one id per line. Every episode of each must succeed."""


class KLGate(Settings):
    """The candidate stays close to the base policy."""

    kind: Literal["kl"] = "kl"
    """Gate."""
    max_nats: float = Field(default=5.0, gt=0)
    """Largest KL divergence to the base policy, in nats per token."""


class LengthGate(Settings):
    """The candidate's replies are not much longer than the champion's."""

    kind: Literal["length"] = "length"
    """Gate."""
    max_ratio: float = Field(default=2.0, gt=0)
    """Largest ratio of completion tokens in an episode to the champion's."""


class TruncationGate(Settings):
    """Few episodes are truncated by max_new_tokens or max_context. The environment's limit of turns does not count."""

    kind: Literal["truncation"] = "truncation"
    """Gate."""
    max_rate: float = Field(default=0.02, ge=0, le=1)
    """Largest share of episodes of the candidate that the limit of tokens truncated."""


class FailureGate(Settings):
    """Few episodes fail."""

    kind: Literal["failure"] = "failure"
    """Gate."""
    max_rate: float = Field(default=0.02, ge=0, le=1)
    """Largest share of failed episodes of the candidate."""


class LatencyGate(Settings):
    """Turns are fast enough at a known decoding speed."""

    kind: Literal["latency"] = "latency"
    """Gate."""
    max_p95_s: float = Field(gt=0)
    """Largest 95th percentile of the time of an agent's turn, tool calls included."""
    tokens_per_s: float = Field(gt=0)
    """Tokens per second that the serving hardware decodes for one conversation."""

    @model_validator(mode="after")
    def _a_token_is_in_time(self) -> Self:
        if self.max_p95_s * self.tokens_per_s < 1:
            raise ValueError(
                f"max_p95_s {self.max_p95_s:g} at tokens_per_s {self.tokens_per_s:g} is less than one token, so that "
                "no candidate could pass. Raise one of them"
            )
        return self


class PythonGate(PythonObject):
    """Gate of your own: a function of the evidence and the options that returns a `GateCheck`."""

    group = "grpo.gates"


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
    | LatencyGate
    | PythonGate,
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
    """Metric of the first gate that compares candidate and champion."""
    named = (gate.metric for gate in gates if isinstance(gate, (ImprovementGate, CategoryGate)))
    return next((metric for metric in named if metric is not None), "success")


def with_metric(gates: tuple[GateSettings, ...], metric: Metric) -> tuple[GateSettings, ...]:
    """The gates, with `metric` set for each one that compares and names none."""
    return tuple(
        gate.model_copy(update={"metric": metric})
        if isinstance(gate, (ImprovementGate, CategoryGate)) and gate.metric is None
        else gate
        for gate in gates
    )
