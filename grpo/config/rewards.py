"""Settings of rewards: components, the LLM judge, and files of preference pairs and labelled replies."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, model_validator

from grpo.config.base import AppliesWhen, LocalPath, LocalPlace, Settings, from_config_folder
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
"""Rewards with an option `model` that is a folder."""
PYTHON = "python"
"""Kind of a reward that the config names as `module:name`."""
TRL = "trl"
"""Kind of a function in the form of TRL's `reward_funcs`."""
PLUGIN_GROUP = "grpo.rewards"
"""Entry point group of the rewards of installed packages."""


def plugin_names() -> set[str]:
    """Names of the rewards of installed packages. They do not replace rewards of this package."""
    return {point.name for point in entry_points(group=PLUGIN_GROUP)} - {*REWARD_NAMES}


def plugin(name: str) -> EntryPoint | None:
    """Entry point of the reward of an installed package, not loaded yet, or None if no package has one."""
    if name in REWARD_NAMES:
        return None
    return next(iter(entry_points(group=PLUGIN_GROUP, name=name)), None)


def _known(name: str) -> str:
    if name not in (*REWARD_NAMES, PYTHON, TRL) and plugin(name) is None:
        known = ", ".join(sorted({*REWARD_NAMES, *plugin_names()}))
        raise ValueError(f"reward {name} is unknown. Known are {known}, and python or trl with object: module:name")
    return name


RewardName = Annotated[str, AfterValidator(_known)]


class RewardComponent(Settings):
    """One reward and its weight."""

    kind: RewardName
    """Reward of this package or of a plugin, `python` for a class or function of your own, or `trl` for a function in
    the form of TRL's `reward_funcs`."""
    object: ObjectName | None = None
    """`module:name` of a reward. For kind python, a subclass of RewardFunction or a function of (turns, context). For
    kind trl, a function of prompts, completions and columns."""
    weight: float = Field(ge=-1, le=1)
    """Weight in the total. A negative weight penalizes."""
    options: Options = Field(default_factory=dict)
    """Settings of this reward, by name."""
    reads: Reads = ()
    """Files, folders and `$VARIABLES` to add to the cache key, because your reward reads them unseen, e.g. in a program
    that it starts. See docs/internals/identity.md."""
    optional: bool = False
    """If this reward fails, score the episode without it. Otherwise the episode gets no reward."""
    floor: float | None = None
    """Hard constraint: if the score of this reward is below it, the episode gets the lowest score, whatever the other
    rewards give."""
    accepted_exploits: tuple[str, ...] = ()
    """Known exploits of this reward, by probe. Any other exploit stops the run. `grpo check-reward` lists them."""

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
        """`module:name` of a reward of the user's own or of a plugin, or None for a reward of this package."""
        if self.object is not None:
            return reference_of(self.object, group=PLUGIN_GROUP)
        point = plugin(self.kind)
        return None if point is None else point.value

    @model_validator(mode="after")
    def _object_goes_with_python(self) -> Self:
        if (self.kind in (PYTHON, TRL)) != (self.object is not None):
            if self.object is None:
                raise ValueError(f"kind {self.kind} needs object: module:name, which names your reward")
            raise ValueError(
                f"object {self.object} has no effect with kind {self.kind}. Set kind: python or trl, or leave object "
                "out"
            )
        return self


class JudgeSettings(Settings):
    """LLM judge of the reward `ruler` (besides its rubric and fallback) or of the setting `judge`."""

    model_config = ConfigDict(hide_input_in_errors=True)  # api_key_env may have been set to the key itself

    model: str
    """Address of the judge, as `openai+https://api.openai.com/v1#gpt-4.1`."""
    api_key_env: str = Field(default="OPENAI_API_KEY", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable that holds the API key. Do not write the key itself anywhere else."""
    seed: int = 0
    """Seed of the order and the labels of the group's replies, with the scenario's id."""
    temperature: float | None = Field(default=0.0, ge=0, le=2)
    """Sampling temperature of the judge. None for models that take no temperature."""
    max_completion_tokens: int = Field(default=4096, ge=16)
    """Most tokens of one answer of the judge."""
    max_chars: int = Field(default=12_000, ge=100)
    """Most characters of one conversation, and of what all of them share, in the judge's prompt. The longest messages
    lose their middle until it fits."""
    concurrency: int = Field(default=8, ge=1)
    """Groups that are scored at the same time."""
    timeout_s: float = Field(default=60.0, gt=0)
    """A request is given up if the server sends nothing for this many seconds."""
    retries: int = Field(default=2, ge=0)
    """Retries after dropped connections, timeouts, 408, 409, 429 and 5xx, with exponential backoff and jitter or after
    the server's `Retry-After` (up to two minutes)."""
    deadline_s: float = Field(default=300.0, gt=0)
    """Timeout of one question, with all its retries and pauses."""
    failure_threshold: int = Field(default=5, ge=1)
    """Consecutive failed questions that open the circuit breaker."""
    cooldown_s: float = Field(default=60.0, gt=0)
    """Seconds for which the circuit breaker stays open."""
    folder: LocalPlace = Field(default_factory=lambda: str(home() / "judge"))
    """Folder of the cached answers and the ledger of costs, by default `judge` in GRPO_HOME."""
    prompt_price: float | None = Field(default=None, ge=0)
    """Price of a million prompt tokens, in any currency, the same for all prices."""
    completion_price: float | None = Field(default=None, ge=0)
    """Price of a million completion tokens."""
    budget_tokens: int | None = Field(default=None, ge=1)
    """No further question is sent if the ledger of this folder holds this many tokens or more."""
    budget_cost: float | None = Field(default=None, gt=0)
    """No further question is sent if the ledger of this folder holds this cost in the currency of the prices."""

    @model_validator(mode="after")
    def _check_prices(self) -> Self:
        if (self.prompt_price is None) != (self.completion_price is None):
            raise ValueError("prompt_price and completion_price go together. Give both")
        if self.budget_cost is not None and self.prompt_price is None:
            raise ValueError(
                f"budget_cost {self.budget_cost} needs prompt_price and completion_price, because costs are computed "
                "from them"
            )
        return self


class _RewardDataFile(Settings):
    kind: Literal["jsonl", "json", "parquet", "csv"]
    """Format of the file."""
    path: LocalPath
    """File to read, or a table in an object store."""
    csv: Annotated[CsvFormat, AppliesWhen("kind", ("csv",))] = DETECTED
    """Delimiter and encoding of a CSV file, if they cannot be detected."""
    layout: Literal["text", "messages"] = "text"
    """Form of prompt and replies: texts (a user's message, an agent's replies), or messages: a list, one message, or an
    object with `messages`, with the keys and tags of OpenAI or ShareGPT, as JSON text if a cell cannot hold them."""
    system: str | None = None
    """Column of the system prompt."""
    id: str | None = None
    """Column of a record's id. None names records by the file and their place in it."""
    group: str | None = None
    """Column of the group. Records of one group stay in one split. None groups records by their prompt."""
    category: str | None = None
    """Column of the category."""
    split: str | None = None
    """Column of the split, `train` or `heldout`."""
    licence: str = ""
    """Licence of the data."""


File = TypeVar("File", bound="PairFile | LabelFile")


def _one_prompt_of_messages(settings: File) -> File:
    if isinstance(settings.prompt, tuple) and settings.layout == "messages":
        raise ValueError(
            f"prompt names several columns ({', '.join(settings.prompt)}), and lists of messages cannot be joined. Set "
            "layout: text, or name one column"
        )
    return settings


class PairFile(_RewardDataFile):
    """File of preference pairs, one per record."""

    prompt: str | tuple[str, ...] | None = "prompt"
    """Column of the prompt, or several to join with a blank line, e.g. Alpaca's `[instruction, input]`. None if both
    sides are whole conversations that differ in their last message."""
    chosen: str = "chosen"
    """Column of the preferred reply."""
    rejected: str = "rejected"
    """Column of the other reply."""

    @model_validator(mode="after")
    def _whole_conversations_are_messages(self) -> Self:
        if not self.prompt and self.layout == "text":
            raise ValueError(
                "set layout: messages, because prompt names no column, so that both sides are whole conversations"
            )
        return _one_prompt_of_messages(self)


class LabelFile(_RewardDataFile):
    """File of labelled replies, one per record."""

    prompt: str | tuple[str, ...] | None = None
    """Column of the prompt, or several to join with a blank line. None if replies were labelled without a prompt, or
    if, with layout messages, the conversation ends with the reply."""
    reply: str = "text"
    """Column of the reply."""
    label: str = "label"
    """Column of the label."""
    score: str | None = None
    """Column of a number, higher is better. None if `scores` gives the numbers, or if labels have no order."""
    scores: dict[str, float] = Field(default_factory=dict)
    """Score of each label, for example `{good: 1, bad: 0}`. A label that is not listed is refused."""

    @model_validator(mode="after")
    def _one_source_of_scores(self) -> Self:
        if self.score is not None and self.scores:
            raise ValueError(
                f"score (the column {self.score}) and scores (a number for each label) exclude each other. Leave one "
                "out"
            )
        return _one_prompt_of_messages(self)
