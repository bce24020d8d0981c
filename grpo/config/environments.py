"""The worlds that an agent can be put into."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grpo.config.base import Settings


class SupportDeskSettings(Settings):
    """The order desk: records, four tools, customers who must be asked."""

    kind: Literal["support_desk"]
    max_turns: int = Field(default=8, ge=1)
    """Agent turns after which an episode is cut off."""


class ConversationSettings(Settings):
    """Scripted users: turn k of the user is said whatever the agent replies."""

    kind: Literal["conversation"]
    system_prompt: str = ""
    max_turns: int = Field(default=4, ge=1)
    """Agent turns after which an episode is cut off."""


EnvironmentSettings = Annotated[SupportDeskSettings | ConversationSettings, Field(discriminator="kind")]
