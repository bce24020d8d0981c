"""One run of the pipeline, whole: what Prefect's run form shows and a YAML file of differences sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from grpo.config.base import Settings
from grpo.config.environments import EnvironmentSettings
from grpo.config.evaluation import EvaluationSettings, GateSettings
from grpo.config.policy import PolicySettings
from grpo.config.rewards import RewardComponent
from grpo.config.rollout import RolloutSettings
from grpo.config.scenarios import ScenarioSettings
from grpo.config.training import TrainingSettings
from grpo.errors import ConfigError


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

    @model_validator(mode="after")
    def _a_quantized_base_is_adapted(self) -> Self:
        if self.policy.quantization is not None and self.training.lora is None:
            raise ValueError(
                f"policy.quantization {self.policy.quantization}: weights of few bits cannot be trained; set "
                "training.lora, for example {r: 16}"
            )
        return self

    @model_validator(mode="after")
    def _the_backend_fits_the_training(self) -> Self:
        if self.rollout.backend == "vllm" and self.training.lora is not None:
            raise ValueError("rollout.backend vllm plays whole weights; leave it or training.lora out")
        if self.rollout.backend == "vllm" and self.training.importance_cap is None:
            raise ValueError(
                "rollout.backend vllm says log-probabilities that differ from the learner's in the last digits; set "
                "training.importance_cap, for example 2.0, which makes up for it"
            )
        if self.rollout.informative_groups is not None and self.training.algorithm in ("ppo", "a2c"):
            raise ValueError(
                f"rollout.informative_groups counts groups whose siblings differ, which {self.training.algorithm} does "
                "not compare; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _stale_rollouts_are_corrected(self) -> Self:
        if self.rollout.staleness and self.training.importance_cap is None:
            raise ValueError(
                f"rollout.staleness {self.rollout.staleness} trains on rollouts of the policy before; set "
                "training.importance_cap, for example 2.0, which makes up for the difference"
            )
        return self


def load_config(path: Path, overrides: tuple[str, ...] = ()) -> PipelineConfig:
    """Read a YAML config; an override is `section.key=value`, its value read as YAML.

    A config with `extends: other.yaml` holds only what differs from that file, which lies beside it.
    Raises `ConfigError` that names the file, the key, the value and what is allowed.
    """
    return _validated(_read(path), overrides, origin=str(path))


def overridden(config: PipelineConfig, overrides: tuple[str, ...]) -> PipelineConfig:
    """A config with these `section.key=value` laid over it, as over the file that it was read from.

    Raises `ConfigError` that names the key, the value and what is allowed.
    """
    if not overrides:
        return config
    return _validated(config.model_dump(mode="json", exclude_unset=True), overrides, origin=f"config {config.name}")


def _validated(document: dict[str, Any], overrides: tuple[str, ...], *, origin: str) -> PipelineConfig:
    """The config that a document with overrides describes; `origin` says where the document came from."""
    for override in overrides:
        _override(document, override)
    try:
        return PipelineConfig.model_validate(document)
    except ValidationError as error:
        lines = [f"{origin}: {len(error.errors())} setting(s) cannot be used"]
        for problem in error.errors():
            place = ".".join(str(part) for part in problem["loc"])
            lines.append(f"  {place or 'settings that do not agree'}: {problem['msg']} (got {problem['input']!r:.80})")
        raise ConfigError("\n".join(lines)) from error


def _read(path: Path, *, extended_by: Path | None = None) -> dict[str, Any]:
    """A config file laid over the one that it extends; one step deep."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"no config at {path}; the shipped ones are in data/configs") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds {type(document).__name__}, expected a mapping of settings")
    base = document.pop("extends", None)
    if base is None:
        return document
    if extended_by is not None:
        raise ConfigError(f"{extended_by} extends {path}, which extends {base}; extend that one")
    if not isinstance(base, str) or not base or Path(base).name != base:
        raise ConfigError(f"{path}: extends is {base!r}; name another file in the same folder")
    return _merged(_read(path.with_name(base), extended_by=path), document)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two mappings laid over each other, key by key; lists and values are replaced whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


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
