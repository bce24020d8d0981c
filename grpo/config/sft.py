"""Settings of supervised fine-tuning (SFT) on demonstrations before the first rollout."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from grpo.config.base import LocalPath, Settings
from grpo.config.python_object import PythonObject
from grpo.config.served_log import AllowedUse, ServedLogSettings, refuse_removed_log


class WrittenDemonstrations(Settings):
    """Conversations in a file, one per line, as OpenAI's `{"messages": [{"role", "content", "tool_calls"}, …]}`.

    The reasoning of a turn is in `reasoning_content`, `reasoning` or `thinking`.
    """

    kind: Literal["jsonl"]
    """Conversations as JSON, one per line."""
    path: LocalPath
    """File to read."""


class ServedDemonstrations(AllowedUse, ServedLogSettings):
    """Conversations of a serving log that were verified as successes, and corrected replies.

    If a reply was corrected, the conversation until this reply is a demonstration, with the correction at its end.
    Personal data is redacted.
    """

    min_rating: float | None = Field(default=None, ge=0, le=1)
    """Lowest rating at which a conversation is a demonstration although its outcome was not verified. None uses only
    verified successes and corrections."""


class GeneratedDemonstrations(PythonObject):
    """Function that yields conversations in the form of a file's lines, such as the episodes of a bot.

    Its sources, the packages that they import and the files that it opens are part of the cache key.
    """

    group = "grpo.demonstrations"


class FineTuningSettings(Settings):
    """Steps of supervised fine-tuning by TRL's SFTTrainer, with the loss only on the agent's turns.

    All weights are trained. GRPO starts from the result and measures its KL divergence from it.
    """

    epochs: int = Field(default=1, ge=1)
    """Passes over the demonstrations."""
    learning_rate: float = Field(default=2e-5, gt=0)
    """AdamW's learning rate at the start. It falls linearly to 0."""
    conversations_per_step: int = Field(default=16, ge=1)
    """Conversations per optimizer step."""


DemonstrationSettings = Annotated[
    WrittenDemonstrations | ServedDemonstrations | GeneratedDemonstrations,
    Field(discriminator="kind"),
    BeforeValidator(refuse_removed_log),
]


class SFTSettings(FineTuningSettings):
    """Supervised fine-tuning of the base on demonstrations."""

    demonstrations: DemonstrationSettings
    """Demonstrations. If one has no system message, it gets the system prompt of the agent and environment."""
