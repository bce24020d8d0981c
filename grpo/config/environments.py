"""Settings of the environments."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from grpo.config.base import LEAST_TEMPERATURE, AppliesWhen, ModelAddress, Settings
from grpo.config.python_object import Options, PythonObject, UserObject
from grpo.config.tasksets import taskset_reference

_WITH_MODEL = AppliesWhen("model")


class SupportDeskSettings(Settings):
    """Order desk with records and four tools. The agent may have to ask customers for facts."""

    kind: Literal["support_desk"]
    """Order desk that ships with the project. Success is verified on its records."""
    max_turns: int = Field(default=8, ge=1)
    """Agent turns after which an episode ends."""


class ConversationSettings(Settings):
    """Scripted users: turn k of the user is line k of the script, whatever the agent replies."""

    kind: Literal["conversation"]
    """Users with turns that are written in the scenario."""
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
    weights, named as in `policy.model`. None uses fixed phrases."""
    temperature: Annotated[float, _WITH_MODEL] = Field(default=0.7, ge=LEAST_TEMPERATURE, allow_inf_nan=False)
    """Sampling temperature of the simulated user's model."""
    max_new_tokens: Annotated[int, _WITH_MODEL] = Field(default=128, ge=1)
    """Most tokens of one turn of the simulated user's model."""


class SimulatedUserSettings(_GoalSettings):
    """Users with a goal, facts that they disclose on request, and patience. Scenarios need a `goal`."""

    kind: Literal["simulated_user"]
    """User simulator, by rules or a model, that pursues the scenario's goal."""
    max_turns: int = Field(default=10, ge=1)
    """Agent turns after which an episode ends."""


class TaskSettings(_GoalSettings):
    """Tool tasks in worlds that ship with the library: a shop, a file system, messages, posts, tickets, mathematics.

    A scenario names its `tools`. A scripted user follows its `user_responses`, a simulated user follows its `goal`.
    """

    kind: Literal["task"]
    """Tasks with tools, verified on the final state of their world."""
    max_turns: int = Field(default=30, ge=1)
    """Agent turns after which an episode ends, tool calls included."""


class ReplaySettings(Settings):
    """Replay of logged conversations: users are scripted, and tool calls get the results recorded in the scenario."""

    kind: Literal["replay"]
    """Conversations of a log. A tool call gets the result that it has in the log."""
    system_prompt: str = ""
    """System prompt, put before the system prompt of the log."""
    max_turns: int = Field(default=30, ge=1)
    """Agent turns after which an episode ends, tool calls included."""


class Team(Settings):
    """Team that an agent can pass a customer on to."""

    name: str = Field(min_length=1, max_length=100)
    """Name in the tool call."""
    handles: str = ""
    """Matters of the team, for the system prompt. If empty, the system prompt has only its name."""
    categories: tuple[str, ...] = ()
    """Categories of scenarios that belong to the team. If empty, the category with its name."""


class TriageSettings(Settings):
    """Triage: the agent passes a customer on to a team by a tool call, and asks first if the opening is vague."""

    kind: Literal["triage"]
    """Triage of customers by teams. The right team follows from the category of the scenario."""
    teams: tuple[Team, ...] = Field(min_length=2)
    """Teams to choose from."""
    system_prompt: str = ""
    """System prompt, put before the list of teams."""
    max_turns: int = Field(default=3, ge=1)
    """Agent turns after which an episode ends."""

    @model_validator(mode="after")
    def _a_category_has_one_team(self) -> Self:
        owners: dict[str, str] = {}
        for team in self.teams:
            for category in team.categories or (team.name,):
                if category in owners:
                    raise ValueError(
                        f"category {category} belongs to teams {owners[category]} and {team.name}. Keep one"
                    )
                owners[category] = team.name
        return self


class PythonEnvironmentSettings(PythonObject):
    """Environment of your own: a subclass of `grpo.Environment`, or a function that returns one."""

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
    """An episode is a success if `get_reward` gives at least this. None leaves success open, for gates with metric
    reward."""


class GymEnvironmentSettings(UserObject):
    """Class in Gymnasium's form: `reset` and `step` with texts as observations and actions."""

    group = "grpo.environments"
    kind: Literal["gym"]
    """A class with `reset` and `step` as Gymnasium, Gym and OpenEnv's clients have them, or a function that returns an
    instance."""
    system_prompt: str = ""
    """System prompt of the environment."""
    max_turns: int = Field(default=20, ge=1)
    """Agent turns after which an episode is cut off. The environment may end it earlier."""
    success_reward: SuccessReward = None
    """An episode is a success if the sum of its rewards is at least this. `info["is_success"]` comes first. None leaves
    success open, for gates with metric reward."""


class VerifiersSettings(Settings):
    """Taskset of the package `verifiers`, with its tools and rewards. Its scenarios are the source of the same id."""

    kind: Literal["verifiers"]
    """Taskset that the community publishes for `verifiers`. Needs the pip extra verifiers."""
    id: str = Field(pattern=r"^[\w./@-]+$", max_length=200)
    """Id of the taskset: a module, installed or in the config's folder, that exports it by `__all__`."""
    args: Options = Field(default_factory=dict)
    """Settings of the taskset, by name."""
    max_turns: int = Field(default=10, ge=1)
    """Agent turns after which an episode ends, tool calls included."""
    success_reward: SuccessReward = None
    """An episode is a success if its reward is at least this. None leaves success open, for gates with metric
    reward."""

    @property
    def reference(self) -> str:
        """`module:name` of the taskset, for its identity."""
        return taskset_reference(self.id)


class PackageSettings(Settings):
    """Environment of an optional package."""

    packages: ClassVar[tuple[str, ...]]
    """Distributions that an episode depends on, so that their releases count."""
    extra: ClassVar[str]
    """Extra that installs them."""


class GymnasiumTextSettings(PackageSettings):
    """Environments of Gymnasium in texts, including BabyAI's levels. A scenario's world names the environment and its
    seed, see docs/tasks.md."""

    packages = ("gymnasium", "minigrid")
    extra = "minigrid"
    kind: Literal["gymnasium_text"]
    """Gymnasium's environments with texts as observations and actions. Needs the pip extra minigrid."""
    system_prompt: str = ""
    """System prompt of the environment."""
    max_turns: int = Field(default=20, ge=1)
    """Agent turns after which an episode is cut off. The environment's own limit of steps may end it earlier."""


class ReasoningGymSettings(PackageSettings):
    """Questions of reasoning-gym. A scenario's world names the generator of its question, see docs/tasks.md."""

    packages = ("reasoning-gym",)
    extra = "reasoning"
    kind: Literal["reasoning_gym"]
    """Questions of reasoning-gym, scored by its verifiers. Needs the pip extra reasoning."""
    system_prompt: str = ""
    """System prompt of the environment."""
    max_turns: int = Field(default=1, ge=1)
    """Answers that the agent may give. After a wrong answer it is asked to try again."""


class TextArenaSettings(PackageSettings):
    """Single-player games of TextArena. A scenario's world names the game and its seed, see docs/tasks.md."""

    packages = ("textarena",)
    extra = "textarena"
    kind: Literal["textarena"]
    """Single-player games of TextArena. Needs the pip extra textarena, which brings a package under the GPL."""
    system_prompt: str = ""
    """System prompt of the environment."""
    max_turns: int = Field(default=20, ge=1)
    """Agent turns after which an episode is cut off. The game's own limit of turns may end it earlier."""


class TextWorldSettings(PackageSettings):
    """Games that TextWorld's maker generates. A scenario's world names the maker and its seed, see docs/tasks.md."""

    packages = ("textworld",)
    extra = "textworld"
    kind: Literal["textworld"]
    """Generated text adventures of TextWorld. Needs the pip extra textworld, which brings a package under the GPL."""
    system_prompt: str = ""
    """System prompt of the environment."""
    max_turns: int = Field(default=20, ge=1)
    """Agent turns after which an episode is cut off."""


EnvironmentSettings = Annotated[
    SupportDeskSettings
    | ConversationSettings
    | SimulatedUserSettings
    | TaskSettings
    | ReplaySettings
    | TriageSettings
    | PythonEnvironmentSettings
    | TRLEnvironmentSettings
    | GymEnvironmentSettings
    | VerifiersSettings
    | GymnasiumTextSettings
    | ReasoningGymSettings
    | TextArenaSettings
    | TextWorldSettings,
    Field(discriminator="kind"),
]
