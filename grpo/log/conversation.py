"""A logged conversation with its metadata, as retraining reads it from every log."""

from __future__ import annotations

from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from grpo.messages import Message
from grpo.scenario import Domain, Expected


class LoggedConversation(BaseModel):
    """One conversation with its metadata."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    id: str = Field(min_length=1, max_length=180)
    time: AwareDatetime
    """Start of the conversation."""
    model: str
    """Model that served it: name and version in the registry, `support-desk/3`."""
    messages: tuple[Message, ...] = Field(min_length=1)
    reward: float | None = None
    """Reward of the policy's training. None if none was computed, which is not the same as 0."""
    rating: float | None = Field(default=None, ge=0, le=1)
    """The user's rating, 0 worst, 1 best."""
    domain: Domain = "general"
    category: str = Field(default="general", min_length=1, max_length=200)
    tools: tuple[dict[str, Any], ...] = ()
    """Tools that the agent could call."""
    world: dict[str, Any] = Field(default_factory=dict)
    """State at the start of the conversation of the records that the agent's tools read and changed."""
    expected: Expected = Field(default_factory=Expected)
    """Expected outcome, from a reviewer or from the conversation's end."""
    licence: str = ""
    consent: str = ""
    """Uses that the user agreed to. Empty for none."""
