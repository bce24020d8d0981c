"""Settings of rewards: components, the LLM judge, and files of preference pairs and labelled replies."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, model_validator

from grpo.config.base import LocalPath, LocalPlace, ReadWith, Settings, from_config_folder
from grpo.config.csv_format import DETECTED, CsvFormat
from grpo.config.python_object import ObjectName, Options, Reads
from grpo.storage.home import home
from grpo.user_objects import reference_of

REWARD_NAMES = (
    "task_completion", "checks", "environment", "valid_calls", "conciseness", "keywords", "variety", "constant",
    "helpfulness", "engagement", "correctness", "similarity", "similarity_aware",
    "customer_service", "technical_support", "sales", "education", "creative_writing",
    "empathy", "action", "professionalism", "ruler", "safety", "neural",
)  # fmt: skip
"""Rewards of this package."""
_LEARNED = ("neural", "safety")
"""Rewards whose option `model` is a folder."""
PYTHON = "python"
"""Kind of a reward that the config names as `module:name`."""
TRL = "trl"
"""Kind of a function in the form of TRL's `reward_funcs`."""
PLUGIN_GROUP = "grpo.rewards"
"""Entry point group of the rewards of installed packages."""


def plugin_names() -> set[str]:
    """Names of the rewards of installed packages; they do not replace rewards of this package."""
    return {point.name for point in entry_points(group=PLUGIN_GROUP)} - {*REWARD_NAMES}


def plugin(name: str) -> EntryPoint | None:
    """Entry point of the reward of an installed package, not loaded yet; None where no package has one."""
    if name in REWARD_NAMES:
        return None
    return next(iter(entry_points(group=PLUGIN_GROUP, name=name)), None)


def _known(name: str) -> str:
    if name not in (*REWARD_NAMES, PYTHON, TRL) and plugin(name) is None:
        known = ", ".join(sorted({*REWARD_NAMES, *plugin_names()}))
        raise ValueError(f"reward {name} is unknown; known are {known}, and python or trl with object: module:name")
    return name


RewardName = Annotated[str, AfterValidator(_known)]


class RewardComponent(Settings):
    """One reward and its weight."""

    kind: RewardName
    """Reward of this package or of a plugin, or `python` for a class or function of your own, or `trl` for one in the
    form of TRL's `reward_funcs`."""
    object: ObjectName | None = None
    """`module:name` of a reward of kind python, a subclass of RewardFunction or a function of (turns, context); of kind
    trl, a function of prompts, completions and columns."""
    weight: float = Field(ge=-1, le=1)
    """Weight in the total; negative penalizes."""
    options: Options = Field(default_factory=dict)
    """Settings of this reward, by name."""
    reads: Reads = ()
    """Files, folders and `$VARIABLES` of the cache key that a reward of your own reads unseen, as a program that it
    starts does; see docs/identity.md."""
    optional: bool = False
    """Score an episode without this reward where it fails; otherwise the episode gets no reward."""
    floor: float | None = None
    """Hard constraint: below it the episode gets the least score, whatever the other rewards give."""
    accepted_exploits: tuple[str, ...] = ()
    """Known exploits of this reward, by probe; any other one stops the run. `grpo check-reward` lists them."""

    @model_validator(mode="before")
    @classmethod
    def _model_counts_from_the_config(cls, document: Any, info: ValidationInfo) -> Any:
        options = document.get("options") if isinstance(document, dict) else None
        if not isinstance(options, dict) or document.get("kind") not in _LEARNED:
            return document
        model = options.get("model")
        if not isinstance(model, str):
            return document
        return {**document, "options": {**options, "model": from_config_folder(model, info)}}

    @property
    def path_options(self) -> tuple[str, ...]:
        """See `Settings.path_options`."""
        return ("model",) if self.kind in _LEARNED else ()

    @property
    def reference(self) -> str | None:
        """`module:name` of a reward of the user's own or of a plugin; None for one of this package."""
        if self.object is not None:
            return reference_of(self.object, group=PLUGIN_GROUP)
        point = plugin(self.kind)
        return None if point is None else point.value

    @model_validator(mode="after")
    def _object_goes_with_python(self) -> Self:
        if (self.kind in (PYTHON, TRL)) != (self.object is not None):
            raise ValueError(
                f"object {self.object} with kind {self.kind}; kind python names its object: module:name, as trl does"
            )
        return self


class JudgeSettings(Settings):
    """LLM judge of the reward `ruler` (besides its rubric and fallback) or of the setting `judge`."""

    model_config = ConfigDict(hide_input_in_errors=True)  # api_key_env may have been set to the key itself

    model: str
    """Address of the judge, as `openai+https://api.openai.com/v1#gpt-4.1`."""
    api_key_env: str = Field(default="OPENAI_API_KEY", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable that holds the API key; the key itself belongs nowhere else."""
    seed: int = 0
    """Seed of the order and the labels of the group's replies, with the scenario's id."""
    temperature: float | None = Field(default=0.0, ge=0, le=2)
    """None for models that take no temperature."""
    max_completion_tokens: int = Field(default=4096, ge=16)
    """Tokens of one answer of the judge at most."""
    max_chars: int = Field(default=12_000, ge=100)
    """Characters of one conversation, and of what all of them share, in the judge's prompt; the longest messages lose
    their middle until it fits."""
    concurrency: int = Field(default=8, ge=1)
    """Groups that are scored at the same time."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds of silence after which a request is given up."""
    retries: int = Field(default=2, ge=0)
    """Retries with exponential backoff and jitter, or after the server's `Retry-After` (two minutes at most), of
    dropped connections, timeouts, 408, 409, 429 and 5xx."""
    deadline_s: float = Field(default=300.0, gt=0)
    """Timeout of one question with all retries and pauses."""
    failure_threshold: int = Field(default=5, ge=1)
    """Consecutive failed questions that open the circuit breaker."""
    cooldown_s: float = Field(default=60.0, gt=0)
    """Seconds for which the circuit breaker stays open."""
    folder: LocalPlace = Field(default_factory=lambda: str(home() / "judge"))
    """Folder of the cached answers and the ledger of costs; by default `judge` in GRPO_HOME."""
    prompt_price: float | None = Field(default=None, ge=0)
    """Price of a million prompt tokens, in any one currency."""
    completion_price: float | None = Field(default=None, ge=0)
    """Price of a million completion tokens."""
    budget_tokens: int | None = Field(default=None, ge=1)
    """Tokens that the ledger of this folder may hold; then no further question is sent."""
    budget_cost: float | None = Field(default=None, gt=0)
    """Cost that the ledger of this folder may hold, in the currency of the prices."""

    @model_validator(mode="after")
    def _check_prices(self) -> Self:
        if (self.prompt_price is None) != (self.completion_price is None):
            raise ValueError("prompt_price and completion_price go together; give both")
        if self.budget_cost is not None and self.prompt_price is None:
            raise ValueError(f"budget_cost {self.budget_cost} needs prompt_price and completion_price")
        return self


class _RewardDataFile(Settings):
    kind: Literal["jsonl", "json", "parquet", "csv"]
    """Format of the file."""
    path: LocalPath
    """File to read, or a table in an object store."""
    csv: Annotated[CsvFormat, ReadWith("kind", ("csv",))] = DETECTED
    """Delimiter and encoding of a file in CSV, where they cannot be found out."""
    layout: Literal["text", "messages"] = "text"
    """Form of prompt and replies: texts (a user's message, an agent's replies), or messages: a list, one message, or an
    object with `messages`, in the keys and tags of OpenAI or ShareGPT, as JSON text where a cell cannot hold them."""
    system: str | None = None
    """Column of the system prompt."""
    id: str | None = None
    """Column of a record's id; none names records by the file and their place in it."""
    group: str | None = None
    """Column of the group: records of one group stay in one split; none groups records by their prompt."""
    category: str | None = None
    """Column of the category."""
    split: str | None = None
    """Column of the split, `train` or `heldout`."""
    licence: str = ""
    """Licence of the data."""


File = TypeVar("File", bound="PairFile | LabelFile")


def _one_prompt_of_messages(settings: File) -> File:
    if isinstance(settings.prompt, tuple) and settings.layout == "messages":
        raise ValueError(f"prompt {', '.join(settings.prompt)}: texts of several columns are joined with layout: text")
    return settings


class PairFile(_RewardDataFile):
    """File of preference pairs, one a record."""

    prompt: str | tuple[str, ...] | None = "prompt"
    """Column of the prompt, or several whose texts are joined by a blank line, as Alpaca's `[instruction, input]`; none
    where both sides are whole conversations that differ in their last message."""
    chosen: str = "chosen"
    """Column of the preferred reply."""
    rejected: str = "rejected"
    """Column of the other reply."""

    @model_validator(mode="after")
    def _whole_conversations_are_messages(self) -> Self:
        if not self.prompt and self.layout == "text":
            raise ValueError("prompt names no column, so both sides are whole conversations: set layout: messages")
        return _one_prompt_of_messages(self)


class LabelFile(_RewardDataFile):
    """File of labelled replies, one a record."""

    prompt: str | tuple[str, ...] | None = None
    """Column of the prompt, or several whose texts are joined by a blank line; none where replies were labelled by
    themselves, or where with layout messages the conversation ends with the reply."""
    reply: str = "text"
    """Column of the reply."""
    label: str = "label"
    """Column of the label."""
    score: str | None = None
    """Column of a number, higher is better; none where `scores` has it, or labels have no order."""
    scores: dict[str, float] = Field(default_factory=dict)
    """Score of each label, for example `{good: 1, bad: 0}`; a label that is not listed is refused."""

    @model_validator(mode="after")
    def _one_source_of_scores(self) -> Self:
        if self.score is not None and self.scores:
            raise ValueError(f"score column {self.score} and scores of labels: give one of them")
        return _one_prompt_of_messages(self)
