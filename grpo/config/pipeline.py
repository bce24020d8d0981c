"""One run of the pipeline, whole: what Prefect's run form shows and a YAML file of differences sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from grpo.config.agent import AgentSettings
from grpo.config.base import Name, RunName, Settings
from grpo.config.compute import ComputeSettings
from grpo.config.environments import EnvironmentSettings
from grpo.config.evaluation import EvaluationSettings
from grpo.config.gates import DEFAULT_GATES, GateSettings, PassGate
from grpo.config.judge import JudgeSettings
from grpo.config.policy import PolicySettings
from grpo.config.rewards import RewardComponent
from grpo.config.rollout import RolloutSettings
from grpo.config.scenarios import ScenarioSettings
from grpo.config.training import TrainingSettings
from grpo.config.yaml_file import load_settings
from grpo.storage.credentials import refuse_credentials
from grpo.storage.home import home

TagKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_. -]*$", max_length=250)]
TagValue = Annotated[str, StringConstraints(max_length=5000)]
"""Key and value of a tag of a version, within MLflow's limits."""


def _home_store() -> str:
    return str(home() / "artifacts")


class RegistrySettings(Settings):
    """Where models are registered."""

    model_name: Name
    """Registered model; its alias `champion` is the one in service."""
    experiment: Name = "grpo"
    """MLflow experiment of the runs."""
    tags: dict[TagKey, TagValue] = Field(default_factory=dict)
    """What a version's tags say besides its lineage."""


class PipelineConfig(Settings):
    """Everything that decides the result of a run, and where it is computed.

    The same config, data and code give the same weights, wherever that is.
    """

    name: RunName
    """Name of the run and of its report's folder."""
    seed: int = Field(default=0, ge=0)
    """Every random number of the run follows from it."""
    store: Annotated[str, AfterValidator(refuse_credentials)] = Field(default_factory=_home_store)
    """Folder or fsspec URI where stages leave their results and artifacts, by default `artifacts` in GRPO_HOME; its
    credentials come from the environment."""
    save_total_limit: int | None = Field(default=1, ge=1)
    """Newest checkpoints of a run that stay, beside those that registered versions need; null keeps all."""
    scenarios: ScenarioSettings
    """What is played: where it comes from, and what is held out."""
    policy: PolicySettings
    """The model that a run begins with, and how it is loaded."""
    agent: AgentSettings = AgentSettings()
    """Who speaks with it, and what it is told."""
    environment: EnvironmentSettings
    """The world in which the episodes are played."""
    reward: tuple[RewardComponent, ...] = Field(min_length=1)
    """Weighted components; their sum is the reward of an episode."""
    judge: JudgeSettings | None = None
    """Language model that judges the assertions of scenarios; without one, success that includes them is not judged."""
    rollout: RolloutSettings = RolloutSettings()
    """How many episodes are played, and how."""
    training: TrainingSettings = TrainingSettings()
    """How the policy learns from them."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """How champion and candidate are compared on held-out scenarios."""
    gates: tuple[GateSettings, ...] = Field(default=DEFAULT_GATES, min_length=1)
    """Every one must pass before the candidate may serve."""
    registry: RegistrySettings
    """Where what was trained is registered."""
    compute: ComputeSettings = ComputeSettings()
    """Where the stages are computed."""

    def identity_settings(self) -> dict[str, Any]:
        """The settings that a result depends on: all but where it is computed and kept."""
        return self.model_dump(mode="json", exclude={"compute", "store", "save_total_limit"})

    @model_validator(mode="after")
    def _shards_have_one_place(self) -> Self:
        sent = self.compute.gpu_stages
        if sent is not None and "rollout" in sent.stages and self.rollout.runner == "dask":
            raise ValueError(
                f"rollouts go to deployment {sent.deployment} or to Dask, not to both: leave rollout.runner out, or "
                "take rollout out of compute.gpu_stages.stages"
            )
        return self

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
        if self.rollout.backend == "vllm" and self.training.importance_sampling_cap is None:
            raise ValueError(
                "rollout.backend vllm says log-probabilities that differ from the learner's in the last digits; set "
                "training.importance_sampling_cap, for example 2.0, which makes up for it"
            )
        if self.rollout.informative_groups is not None and self.training.algorithm in ("ppo", "a2c"):
            raise ValueError(
                f"rollout.informative_groups counts groups whose siblings differ, which {self.training.algorithm} does "
                "not compare; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _pass_gates_have_their_samples(self) -> Self:
        samples = self.evaluation.samples
        for gate in self.gates:
            if isinstance(gate, PassGate) and gate.k > samples:
                raise ValueError(
                    f"gates: pass_hat_k with k {gate.k} needs {gate.k} episodes of a scenario, evaluation.samples is "
                    f"{samples}; raise it, or lower k"
                )
        return self

    @model_validator(mode="after")
    def _stale_rollouts_are_corrected(self) -> Self:
        if self.rollout.staleness and self.training.importance_sampling_cap is None:
            raise ValueError(
                f"rollout.staleness {self.rollout.staleness} trains on rollouts of the policy before; set "
                "training.importance_sampling_cap, for example 2.0, which makes up for the difference"
            )
        return self


def load_config(path: Path, overrides: tuple[str, ...] = ()) -> PipelineConfig:
    """Read the config of a run, as `load_settings` reads any."""
    return load_settings(path, PipelineConfig, overrides)
