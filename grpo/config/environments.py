"""Settings of the environments."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grpo.config.base import ReadWith, Settings

_WITH_MODEL = ReadWith("model")


class SupportDeskSettings(Settings):
    """Order desk: records, four tools, customers who may have to be asked."""

    kind: Literal["support_desk"]
    """Order desk that ships with the project; success is verified on its records."""
    max_turns: int = Field(default=8, ge=1)
    """Agent turns after which an episode is truncated."""


class ConversationSettings(Settings):
    """Scripted users: turn k of the user is line k of the script, whatever the agent replies."""

    kind: Literal["conversation"]
    """Users whose turns are written in the scenario."""
    system_prompt: str = ""
    """System prompt of the environment."""
    max_turns: int = Field(default=10, ge=1)
    """Agent turns after which an episode is truncated."""


class _GoalSettings(Settings):
    system_prompt: str = ""
    """System prompt of the environment."""
    patience: int = Field(default=3, ge=1)
    """Unhelpful turns of the agent after which a simulated user leaves."""
    model: str | None = None
    """Model of the simulated user: a chat server (`openai+https://host/v1#model`), a script (`stub://replies.yaml`) or
    weights, named as in `policy.model`; none uses fixed phrases."""
    temperature: Annotated[float, _WITH_MODEL] = Field(default=0.7, gt=0)
    """Sampling temperature of the simulated user's model."""
    max_new_tokens: Annotated[int, _WITH_MODEL] = Field(default=128, ge=1)
    """Tokens of the simulated user's model in one turn at most."""


class SimulatedUserSettings(_GoalSettings):
    """Users with a goal, facts that they disclose on request, and patience; scenarios need a `goal`."""

    kind: Literal["simulated_user"]
    """User simulator, by rules or a model, that pursues the scenario's goal."""
    max_turns: int = Field(default=10, ge=1)
    """Agent turns after which an episode is truncated."""


class TaskSettings(_GoalSettings):
    """Tool tasks in worlds that ship with the library: a shop, a file system, messages, posts, tickets, mathematics.

    A scenario names its `tools`; a scripted user follows its `user_responses`, a simulated one its `goal`.
    """

    kind: Literal["task"]
    """Tasks with tools, verified on the final state of their world."""
    max_turns: int = Field(default=30, ge=1)
    """Agent turns after which an episode is truncated, tool calls included."""


EnvironmentSettings = Annotated[
    SupportDeskSettings | ConversationSettings | SimulatedUserSettings | TaskSettings, Field(discriminator="kind")
]
