"""Settings of the environments."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from grpo.config.base import LEAST_TEMPERATURE, ModelAddress, ReadWith, Settings
from grpo.config.python_object import Options, PythonObject, UserObject
from grpo.config.tasksets import taskset_reference

_WITH_MODEL = ReadWith("model")


class SupportDeskSettings(Settings):
    """Order desk: records, four tools, customers who may have to be asked."""

    kind: Literal["support_desk"]
    """Order desk that ships with the project; success is verified on its records."""
    max_turns: int = Field(default=8, ge=1)
    """Agent turns after which an episode ends."""


class ConversationSettings(Settings):
    """Scripted users: turn k of the user is line k of the script, whatever the agent replies."""

    kind: Literal["conversation"]
    """Users whose turns are written in the scenario."""
    system_prompt: str = ""
    """System prompt of the environment."""
    max_turns: int = Field(default=10, ge=1)
    """Agent turns after which an episode ends."""


class _GoalSettings(Settings):
    system_prompt: str = ""
    """System prompt of the environment."""
    patience: int = Field(default=3, ge=1)
    """Unhelpful turns of the agent after which a simulated user leaves."""
    model: ModelAddress | None = None
    """Model of the simulated user: a chat server (`openai+https://host/v1#model`), a script (`stub://replies.yaml`) or
    weights, named as in `policy.model`; none uses fixed phrases."""
    temperature: Annotated[float, _WITH_MODEL] = Field(default=0.7, ge=LEAST_TEMPERATURE, allow_inf_nan=False)
    """Sampling temperature of the simulated user's model."""
    max_new_tokens: Annotated[int, _WITH_MODEL] = Field(default=128, ge=1)
    """Tokens of the simulated user's model in one turn at most."""


class SimulatedUserSettings(_GoalSettings):
    """Users with a goal, facts that they disclose on request, and patience; scenarios need a `goal`."""

    kind: Literal["simulated_user"]
    """User simulator, by rules or a model, that pursues the scenario's goal."""
    max_turns: int = Field(default=10, ge=1)
    """Agent turns after which an episode ends."""


class TaskSettings(_GoalSettings):
    """Tool tasks in worlds that ship with the library: a shop, a file system, messages, posts, tickets, mathematics.

    A scenario names its `tools`; a scripted user follows its `user_responses`, a simulated one its `goal`.
    """

    kind: Literal["task"]
    """Tasks with tools, verified on the final state of their world."""
    max_turns: int = Field(default=30, ge=1)
    """Agent turns after which an episode ends, tool calls included."""


class ReplaySettings(Settings):
    """Logged conversations again: scripted users, and tool calls answered from the scenario's recorded ones."""

    kind: Literal["replay"]
    """Conversations of a log, whose tool calls have the results that they had there."""
    system_prompt: str = ""
    """System prompt, which is put before the system prompt of the log."""
    max_turns: int = Field(default=30, ge=1)
    """Agent turns after which an episode ends, tool calls included."""


class Team(Settings):
    """Team that an agent can pass a customer on to."""

    name: str = Field(min_length=1, max_length=100)
    """Name in the call of the tool."""
    handles: str = ""
    """Its matters, in the system prompt; none leaves the team to its name."""
    categories: tuple[str, ...] = ()
    """Categories of scenarios that are its own; none is the category of its name."""


class TriageSettings(Settings):
    """Triage: a customer is passed on to the right team by a tool call, after a question where the opening is vague."""

    kind: Literal["triage"]
    """Triage of customers by teams; the right team follows from the category of the scenario."""
    teams: tuple[Team, ...] = Field(min_length=2)
    """Teams to choose from."""
    system_prompt: str = ""
    """System prompt, before the list of teams."""
    max_turns: int = Field(default=3, ge=1)
    """Agent turns after which an episode ends."""

    @model_validator(mode="after")
    def _a_category_has_one_team(self) -> Self:
        owners: dict[str, str] = {}
        for team in self.teams:
            for category in team.categories or (team.name,):
                if category in owners:
                    raise ValueError(
                        f"category {category} belongs to teams {owners[category]} and {team.name}; keep one"
                    )
                owners[category] = team.name
        return self


class PythonEnvironmentSettings(PythonObject):
    """Environment of one's own: a subclass of `grpo.Environment`, or a function that returns one."""

    group = "grpo.environments"


SuccessReward = Annotated[float | None, Field(allow_inf_nan=False)]


class TRLEnvironmentSettings(UserObject):
    """Class in the form of TRL's `environment_factory`: `reset(**columns)`, and public methods that are its tools."""

    group = "grpo.environments"
    kind: Literal["trl"]
    """A class as TRL's GRPOTrainer takes it for `environment_factory`, or a function that returns an instance."""
    system_prompt: str = ""
    """System prompt of the environment."""
    max_turns: int = Field(default=10, ge=1)
    """Agent turns after which an episode ends, tool calls included."""
    success_reward: SuccessReward = None
    """Reward of `get_reward` from which an episode is a success; none leaves success open, for gates with metric
    reward."""


class VerifiersSettings(Settings):
    """Taskset of the package `verifiers`, with its tools and rewards; its scenarios are the source of the same id."""

    kind: Literal["verifiers"]
    """Taskset that the community publishes for `verifiers`; pip extra verifiers."""
    id: str = Field(pattern=r"^[\w./@-]+$", max_length=200)
    """Id of the taskset: an installed module, or one beside the config, that exports it by `__all__`."""
    args: Options = Field(default_factory=dict)
    """Settings of the taskset, by name."""
    max_turns: int = Field(default=10, ge=1)
    """Agent turns after which an episode ends, tool calls included."""
    success_reward: SuccessReward = None
    """Reward from which an episode is a success; none leaves success open, for gates with metric reward."""

    @property
    def reference(self) -> str:
        """`module:name` of the taskset, for its identity."""
        return taskset_reference(self.id)


class PackageSettings(Settings):
    """Environment of an optional package."""

    packages: ClassVar[tuple[str, ...]]
    """Distributions on whose releases an episode depends."""
    extra: ClassVar[str]
    """Extra that installs them."""


class GymnasiumTextSettings(PackageSettings):
    """Environments of Gymnasium in texts, BabyAI's levels among them; a scenario's world names the environment and its
    seed, see docs/tasks.md."""

    packages = ("gymnasium", "minigrid")
    extra = "minigrid"
    kind: Literal["gymnasium_text"]
    """Gymnasium's environments with texts as observations and actions; pip extra minigrid."""
    system_prompt: str = ""
    """System prompt of the environment."""
    max_turns: int = Field(default=20, ge=1)
    """Agent turns after which an episode is cut off; the environment's own limit of steps may end it earlier."""


class ReasoningGymSettings(PackageSettings):
    """Questions of reasoning-gym; a scenario's world names the generator of its question, see docs/tasks.md."""

    packages = ("reasoning-gym",)
    extra = "reasoning"
    kind: Literal["reasoning_gym"]
    """Questions of reasoning-gym, scored by its verifiers; pip extra reasoning."""
    system_prompt: str = ""
    """System prompt of the environment."""
    max_turns: int = Field(default=1, ge=1)
    """Answers that the agent may give: after a wrong one it is asked to try again."""


EnvironmentSettings = Annotated[
    SupportDeskSettings
    | ConversationSettings
    | SimulatedUserSettings
    | TaskSettings
    | ReplaySettings
    | TriageSettings
    | PythonEnvironmentSettings
    | TRLEnvironmentSettings
    | VerifiersSettings
    | GymnasiumTextSettings
    | ReasoningGymSettings,
    Field(discriminator="kind"),
]
