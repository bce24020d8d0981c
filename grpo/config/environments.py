"""The worlds that an agent can be put into."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo.config.base import Settings


class SupportDeskSettings(Settings):
    """The order desk: records, four tools, customers who must be asked."""

    kind: Literal["support_desk"]
    """The order desk that ships: tools, rules and a record that say what was right."""
    max_turns: int = Field(default=8, ge=1)
    """Agent turns after which an episode is cut off."""


class ConversationSettings(Settings):
    """Scripted users: turn k of the user is said whatever the agent replies."""

    kind: Literal["conversation"]
    """Users whose turns are written in the scenario."""
    system_prompt: str = ""
    """What the agent is told before the first turn."""
    max_turns: int = Field(default=10, ge=1)
    """Agent turns after which an episode is cut off."""


class _GoalSettings(Settings):
    system_prompt: str = ""
    """What the agent is told before the first turn."""
    patience: int = Field(default=3, ge=1)
    """Turns that do not help a simulated user before it leaves."""
    model: str | None = None
    """What finds the simulated user's words: a chat server (`openai+https://host/v1#model`), a script
    (`stub://replies.yaml`) or a model folder; none says what it must in fixed phrases."""
    temperature: float = Field(default=0.7, gt=0)
    """Of the simulated user's model."""
    max_new_tokens: int = Field(default=128, ge=1)
    """Most tokens of the simulated user's model in one turn."""

    @model_validator(mode="after")
    def _model_settings_are_read(self) -> Self:
        for name in ("temperature", "max_new_tokens"):
            if self.model is None and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is not read without model; leave it out")
        return self


class SimulatedUserSettings(_GoalSettings):
    """Users with a goal, facts that they tell when asked, and patience; scenarios need a `goal`."""

    kind: Literal["simulated_user"]
    """Users played by a script or a model, who want what the scenario says."""
    max_turns: int = Field(default=10, ge=1)
    """Agent turns after which an episode is cut off."""


class TaskSettings(_GoalSettings):
    """Tool tasks whose worlds ship with the library: a shop, a file system, messages, posts, tickets, mathematics.

    A scenario names its `tools`; a scripted user says its `user_responses`, a simulated one follows its `goal`.
    """

    kind: Literal["task"]
    """Tasks with tools, judged by the state in which they leave their world."""
    max_turns: int = Field(default=30, ge=1)
    """Agent turns after which an episode is cut off, tool calls included."""


EnvironmentSettings = Annotated[
    SupportDeskSettings | ConversationSettings | SimulatedUserSettings | TaskSettings, Field(discriminator="kind")
]
