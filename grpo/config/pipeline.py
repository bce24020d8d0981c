"""One run of the pipeline, whole: what Prefect's run form shows and a YAML file of differences sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from grpo.config.base import Settings
from grpo.config.scenarios import ScenarioSettings
from grpo.errors import ConfigError


class PolicySettings(Settings):
    """The model that is trained."""

    model: str
    """Folder with config.json, safetensors weights and a tokenizer."""
    chat_template: str | None = None
    """Jinja chat template, for models that come without one."""


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

RewardName = Literal["task_completion", "checks", "valid_calls", "conciseness", "keywords", "variety", "constant"]


class RewardComponent(Settings):
    """One reward and what it counts for."""

    kind: RewardName
    weight: float = Field(ge=-1, le=1)
    """Share in the total; negative turns the reward round."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of this reward, by name."""


class RolloutSettings(Settings):
    """How episodes are played."""

    scenarios: int = Field(default=32, ge=1)
    """Scenarios in an iteration; the training side is gone through in a seeded order."""
    group_size: int = Field(default=8, ge=2)
    """Sibling episodes of each scenario: what an advantage is relative to."""
    temperature: float = Field(default=1.0, gt=0)
    max_new_tokens: int = Field(default=64, ge=1)
    """Most tokens in one turn of the agent."""
    max_context: int = Field(default=512, ge=16)
    """Most tokens in one episode."""
    shards: int = Field(default=1, ge=1)
    """Parts that an iteration is cut into; a shard is what is retried."""
    concurrency: int = Field(default=256, ge=1)
    """Episodes of a shard in flight at once."""
    episode_timeout_s: float = Field(default=120.0, gt=0)
    """An episode that takes longer is failed, not waited for."""
    error_budget: float = Field(default=0.05, ge=0, le=1)
    """More failed episodes than this share stop the run."""


class TrainingSettings(Settings):
    """The GRPO update."""

    iterations: int = Field(default=20, ge=1)
    """Rounds of rollout, score and train."""
    learning_rate: float = Field(default=1e-4, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls over all steps of the run."""
    steps_per_rollout: int = Field(default=1, ge=1)
    """Optimizer steps on each rollout: its groups are dealt into this many batches."""
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.2, gt=0)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the base policy."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    scale_by_std: bool = True
    """Divide the group-relative reward by the group's standard deviation."""
    weight_decay: float = Field(default=0.0, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    microbatch_tokens: int = Field(default=16384, ge=64)
    """Most tokens, padding included, in one forward pass."""
    ratio_tolerance: float = Field(default=1e-5, gt=0)
    """How far the importance ratio may be from 1 before the first step, on average over the tokens of a row."""


class EvaluationSettings(Settings):
    """Candidate against champion on held-out scenarios, sample k of both from the same random numbers."""

    samples: int = Field(default=1, ge=1)
    """Episodes of each held-out scenario."""
    temperature: float = Field(default=1.0, gt=0)
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Level of the intervals."""
    resamples: int = Field(default=2000, ge=100)
    """Bootstrap resamples over scenarios."""


class GateSettings(Settings):
    """What a candidate must show before it may serve."""

    metric: Literal["success", "reward"] = "success"
    """What is compared: the verified outcome, or the reward where nothing can be verified."""
    margin: float = Field(default=0.0, ge=0)
    """The lower bound of the paired difference must exceed this."""
    max_category_drop: float = Field(default=0.1, ge=0)
    """No category's mean may fall by more."""
    max_kl: float = Field(default=5.0, gt=0)
    """Most KL divergence to the base policy, nats a token."""
    max_failed_share: float = Field(default=0.02, ge=0, le=1)
    """Most failed or truncated episodes of the candidate."""
    max_length_ratio: float = Field(default=2.0, gt=0)
    """Most growth of the tokens said in an episode."""


class RegistrySettings(Settings):
    """Where models are registered."""

    model_name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$")
    """Registered model; its alias `champion` is the one in service."""
    experiment: str = Field(default="grpo", min_length=1)
    """MLflow experiment of the runs."""


class PipelineConfig(Settings):
    """Everything that decides the result of a run. The same config, data and code give the same weights."""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$")
    """Name of the run and of its report's folder."""
    seed: int = Field(default=0, ge=0)
    """Every random number of the run follows from it."""
    store: str = "runs/artifacts"
    """Folder or fsspec URI where stages leave their artifacts."""
    scenarios: ScenarioSettings
    policy: PolicySettings
    environment: EnvironmentSettings
    reward: tuple[RewardComponent, ...] = Field(min_length=1)
    """Weighted components; their sum is the reward of an episode."""
    rollout: RolloutSettings = RolloutSettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    gates: GateSettings = GateSettings()
    registry: RegistrySettings


def load_config(path: Path, overrides: tuple[str, ...] = ()) -> PipelineConfig:
    """Read a YAML config; an override is `section.key=value`, its value read as YAML.

    Raises `ConfigError` that names the file, the key, the value and what is allowed.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"no config at {path}; the shipped ones are in data/configs") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds {type(document).__name__}, expected a mapping of settings")
    for override in overrides:
        _override(document, override)
    try:
        return PipelineConfig.model_validate(document)
    except ValidationError as error:
        lines = [f"{path}: {len(error.errors())} setting(s) cannot be used"]
        for problem in error.errors():
            place = ".".join(str(part) for part in problem["loc"])
            lines.append(f"  {place}: {problem['msg']} (got {problem['input']!r:.80})")
        raise ConfigError("\n".join(lines)) from error


def _override(document: dict[str, Any], override: str) -> None:
    """Set one dotted key; list items are addressed by their index."""
    key, separator, text = override.partition("=")
    if not separator:
        raise ConfigError(f"override {override!r} is not of the form section.key=value")
    *parents, last = key.split(".")
    node: Any = document
    try:
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        node[int(last) if isinstance(node, list) else last] = yaml.safe_load(text)
    except (IndexError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise ConfigError(f"override {override!r} does not fit the config: {error}") from error
