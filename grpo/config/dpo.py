"""Settings of direct preference optimization (DPO) on preference pairs before the first rollout."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grpo.config.base import LocalPath, Settings
from grpo.config.served_log import AllowedUse, ServedLogSettings


class WrittenPairs(Settings):
    """Preference pairs in a file, one per line: `{"prompt": […], "chosen": […], "rejected": […], "tools": […]}`.

    TRL's formats: each is a list of messages or a text, and `chosen` and `rejected` may have the prompt as well. Or
    OpenAI's `input`, `preferred_output` and `non_preferred_output`.
    """

    kind: Literal["jsonl"]
    """Pairs as JSON, one per line."""
    path: LocalPath
    """File to read."""


class ServedPairs(AllowedUse, ServedLogSettings):
    """Corrections in a serving log: each correction is preferred to the reply that was served.

    Personal data is redacted.
    """


PairSettings = Annotated[WrittenPairs | ServedPairs, Field(discriminator="kind")]


class PreferenceSettings(Settings):
    """Steps of DPO (arXiv 2305.18290, equation 7) by TRL's DPOTrainer, with the loss only on the two replies.

    All weights are trained. The reference policy is the one that the steps start from.
    """

    beta: float = Field(default=0.1, gt=0)
    """Inverse temperature of the implicit reward. Lower values allow a larger distance from the reference policy."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the pairs."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """AdamW's learning rate at the start. It falls linearly to 0."""
    pairs_per_step: int = Field(default=16, ge=1)
    """Pairs per optimizer step."""


class DPOSettings(PreferenceSettings):
    """DPO on preference pairs, after supervised fine-tuning if the run has one."""

    pairs: PairSettings
    """Pairs of a preferred and a rejected reply. If a prompt has no system message, it gets the system prompt of the
    agent and environment."""
