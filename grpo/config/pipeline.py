"""Config of one run of the pipeline: the fields of Prefect's run form and of a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, model_validator

from grpo.config.agent import AgentSettings, AnyAgentSettings
from grpo.config.base import LEAST_TEMPERATURE, LocalPlace, ModelAddress, Name, RunName, Settings
from grpo.config.dpo import DPOSettings
from grpo.config.environments import EnvironmentSettings, TRLEnvironmentSettings, VerifiersSettings
from grpo.config.episode_parts import EpisodeParts
from grpo.config.gates import DEFAULT_GATES, GateSettings, KLGate, PassGate
from grpo.config.loading import load_settings
from grpo.config.python_object import import_folder
from grpo.config.renderer import RendererSettings
from grpo.config.rewards import TRL, JudgeSettings, RewardComponent
from grpo.config.rollout import RolloutSettings
from grpo.config.scenarios import ScenarioSettings, VerifiersSource
from grpo.config.sft import SFTSettings
from grpo.config.training import TrainingSettings
from grpo.config.version_tags import refuse_signed
from grpo.storage.credentials import refuse_credentials
from grpo.storage.home import home

TagKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_. -]*$", max_length=250)]
TagValue = Annotated[str, StringConstraints(max_length=5000)]
"""Value of a version's tag. Keys and values keep to MLflow's limits."""
LEAST_KL_TEMPERATURE = 0.1
"""Temperature of the evaluation below which the gate `kl` is refused."""


def _home_store() -> str:
    return str(home() / "artifacts")


class PolicySettings(Settings):
    """Model that is trained."""

    model: ModelAddress
    """Folder with config.json, safetensors weights and a tokenizer, or with adapters, a model on the Hugging Face hub
    (`org/name`, `org/name@revision`), a `.gguf` file, a registered version (`models:/name@alias`, `models:/name/3`), or
    a model in an object store (`s3://bucket/store/model/3fa1…#sha256`). Servers and scripts cannot be trained."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the weights in rollouts and training passes, and of a base that adapters freeze. Trained weights have
    float32 masters. With bfloat16, sampler and learner differ by rounding, which importance_sampling_cap corrects."""
    chat_template: str | None = None
    """Jinja chat template, if the model has none."""
    renderer: RendererSettings | None = None
    """Renderer of your own. None renders with the chat template."""
    quantization: Literal["int8", "nf4"] | None = None
    """Quantize the base weights. Needs a GPU and training.lora, and is not covered by tests on hardware."""


class EvaluationSettings(Settings):
    """Candidate against champion on held-out scenarios. Episode k of both draws the same random numbers."""

    samples: int = Field(default=3, ge=1)
    """Episodes per held-out scenario. With one, a gain of 10 points on 200 scenarios passes in 6 of 10 runs."""
    temperature: float = Field(default=1.0, ge=LEAST_TEMPERATURE, allow_inf_nan=False)
    """Sampling temperature on held-out scenarios."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence level of the intervals."""
    resamples: int = Field(default=2000, ge=100, le=1_000_000)
    """Bootstrap resamples over scenarios."""


class GpuStages(Settings):
    """Stages that run on machines with a GPU, one flow run each. The others run in the process of the run."""

    deployment: str = Field(default="stage/gpu", pattern=r"^[^/]+/[^/]+$")
    """Deployment that runs them. The workers of its work pool must read and write the same `store`."""
    stages: tuple[Literal["rollout", "train", "evaluate"], ...] = Field(default=("rollout", "train"), min_length=1)
    """Stages that are sent. `rollout.workers` shards of a rollout run at once."""
    no_progress_s: float = Field(default=3600.0, gt=0)
    """If a stage completes neither an episode nor an optimizer step for this many seconds, its process is ended and the
    stage is sent again. The time for starting an engine and loading a model counts too."""


class ComputeSettings(Settings):
    """Placement of the stages, which does not change the results."""

    gpu_stages: GpuStages | None = None
    """Stages that are sent to another work pool. None runs all of them in the process of the run."""


class RegistrySettings(Settings):
    """Model registry and experiment tracking (MLflow)."""

    model_name: Name
    """Registered model. Its champion is the version that was promoted last."""
    experiment: Name = "grpo"
    """MLflow experiment of the runs."""
    tags: Annotated[dict[TagKey, TagValue], AfterValidator(refuse_signed)] = Field(default_factory=dict)
    """Tags of a version, in addition to its lineage."""
    follow_alias: bool = False
    """Use the version with the alias `champion` as the champion, even if the alias was moved by hand in MLflow. By
    default the champion is the version that was promoted."""


class PipelineConfig(Settings):
    """Config of a run: everything that its result depends on, and its placement.

    The same config, data and code give the same weights on every placement.
    """

    name: RunName
    """Name of the run and of its report's folder."""
    seed: int = Field(default=0, ge=0)
    """Seed of all random numbers of the run."""
    store: Annotated[LocalPlace, AfterValidator(refuse_credentials)] = Field(default_factory=_home_store)
    """Folder or fsspec URI of the stages' results and artifacts, by default `artifacts` in GRPO_HOME. Credentials come
    from the environment."""
    save_total_limit: int | None = Field(default=1, ge=1)
    """Newest checkpoints of a run to keep, in addition to the ones that registered versions need. Null keeps all."""
    scenarios: ScenarioSettings
    """Sources of scenarios and the held-out split."""
    policy: PolicySettings
    """Model that the run starts from."""
    agent: AnyAgentSettings = AgentSettings()
    """System prompt, strategy and reasoning of the agent, or a class of your own."""
    environment: EnvironmentSettings
    """Environment of the episodes."""
    reward: tuple[RewardComponent, ...] = Field(min_length=1)
    """Weighted reward components. Their sum is the reward of an episode."""
    judge: JudgeSettings | None = None
    """LLM judge of the scenarios' assertions. Without one, the success of scenarios with assertions is left open."""
    rollout: RolloutSettings = RolloutSettings()
    """Number, sampling and execution of the episodes."""
    sft: SFTSettings | None = None
    """Supervised fine-tuning on demonstrations before the first rollout. None leaves it out."""
    dpo: DPOSettings | None = None
    """Direct preference optimization on preference pairs before the first rollout, after `sft`. None leaves it out."""
    training: TrainingSettings = TrainingSettings()
    """Policy update."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Comparison of champion and candidate on held-out scenarios."""
    gates: tuple[GateSettings, ...] = Field(default=DEFAULT_GATES, min_length=1)
    """Promotion gates. The candidate is promoted if all of them pass."""
    registry: RegistrySettings
    """Registration of the trained model."""
    compute: ComputeSettings = ComputeSettings()
    """Placement of the stages."""
    import_from: LocalPlace | None = None
    """Folder of your own modules, so that they can be imported. By default the folder of the YAML file, if it has a
    module that the config names. On other machines, install the modules or put them in a folder of PYTHONPATH."""

    @property
    def episode_parts(self) -> EpisodeParts:
        """Environment, agent and renderer of the episodes."""
        return EpisodeParts(environment=self.environment, agent=self.agent, renderer=self.policy.renderer)

    @property
    def objects(self) -> tuple[str, ...]:
        """`module:name` of the objects of the user's own code."""
        parts: tuple[object, ...] = (
            *(self.environment, self.agent, self.policy.renderer, *self.reward, *self.gates, *self.scenarios.sources),
            None if self.sft is None else self.sft.demonstrations,
        )
        named = [getattr(part, "object", None) for part in parts]
        tasksets = [
            part.reference
            for part in (self.environment, *self.scenarios.sources)
            if isinstance(part, (VerifiersSettings, VerifiersSource))
        ]
        return tuple(name for name in (*named, *tasksets) if name is not None)

    @property
    def scored_environment(self) -> EnvironmentSettings | None:
        """The environment, if it and a reward are both of kind trl, because that reward uses its class, or None."""
        used = isinstance(self.environment, TRLEnvironmentSettings) and any(part.kind == TRL for part in self.reward)
        return self.environment if used else None

    @model_validator(mode="after")
    def _a_taskset_has_its_scenarios(self) -> Self:
        sources = [source for source in self.scenarios.sources if isinstance(source, VerifiersSource)]
        environment = self.environment
        for source in sources:
            if not isinstance(environment, VerifiersSettings) or (source.id, source.args) != (
                environment.id,
                environment.args,
            ):
                raise ValueError(
                    f"source verifiers {source.id} {source.args} needs the environment of the same id and args, and "
                    f"environment is {environment.kind}. Give both the same id and args"
                )
        if isinstance(environment, VerifiersSettings) and len(sources) != len(self.scenarios.sources):
            raise ValueError(
                f"environment verifiers {environment.id} runs the tasks of its own taskset. In scenarios.sources "
                "give only {kind: verifiers} with its id and args"
            )
        return self

    @model_validator(mode="after")
    def _own_modules_can_be_imported(self, info: ValidationInfo) -> Self:
        folder = import_folder(self.import_from, self.objects, info)
        return self if folder == self.import_from else self.model_copy(update={"import_from": folder})

    @model_validator(mode="after")
    def _shards_run_in_one_place(self) -> Self:
        sent = self.compute.gpu_stages
        if sent is not None and "rollout" in sent.stages and self.rollout.runner != "threads":
            raise ValueError(
                f"rollouts go to deployment {sent.deployment} or to a cluster of {self.rollout.runner}, not to both: "
                "leave rollout.runner out, or take rollout out of compute.gpu_stages.stages"
            )
        return self

    @model_validator(mode="after")
    def _started_servers_are_reached(self) -> Self:
        sent = self.compute.gpu_stages
        if self.rollout.started_servers is not None and sent is not None and "rollout" in sent.stages:
            raise ValueError(
                f"rollout.servers with a count starts servers that answer only on the machine of the run, and rollouts "
                f"go to deployment {sent.deployment}. Take rollout out of compute.gpu_stages.stages, or list servers "
                "that its machines reach"
            )
        return self

    @model_validator(mode="after")
    def _nodes_share_a_folder(self) -> Self:
        if self.training.nodes > 1 and "://" in self.store.removeprefix("file://"):
            raise ValueError(
                f"training.nodes {self.training.nodes} needs a store that all nodes see as a folder, because each "
                f"process reads its part of a checkpoint there. {self.store} is an object store"
            )
        return self

    @model_validator(mode="after")
    def _a_quantized_base_has_adapters(self) -> Self:
        if self.policy.quantization is not None and self.training.lora is None:
            raise ValueError(
                f"policy.quantization {self.policy.quantization} needs adapters, because weights of few bits cannot "
                "be trained. Set training.lora, for example {r: 16}"
            )
        return self

    @model_validator(mode="after")
    def _the_dtype_fits_the_training(self) -> Self:
        training = self.training
        if self.policy.dtype == "float32":
            return self
        unfit = {
            f"algorithm {training.algorithm}": training.algorithm in ("trpo", "dpo"),
            f"engine {training.engine}": training.engine == "trl",
            f"precision {training.precision}": training.precision != "fp32",
            f"policy.quantization {self.policy.quantization}": self.policy.quantization is not None,
        }
        if faults := [setting for setting, is_unfit in unfit.items() if is_unfit]:
            raise ValueError(
                f"policy.dtype {self.policy.dtype} cannot be combined with {', '.join(faults)}. Leave one out"
            )
        if training.importance_sampling_cap is None:
            raise ValueError(
                f"policy.dtype {self.policy.dtype} makes the learner's log-probabilities differ from the sampler's. "
                "Set training.importance_sampling_cap, for example 2.0, which corrects it"
            )
        return self

    @model_validator(mode="after")
    def _a_quantized_base_is_not_fine_tuned(self) -> Self:
        stage = "sft" if self.sft is not None else "dpo" if self.dpo is not None else None
        if self.policy.quantization is not None and stage is not None:
            raise ValueError(
                f"policy.quantization {self.policy.quantization}: {stage} trains all weights. Leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _the_backend_fits_the_training(self) -> Self:
        if self.rollout.backend == "vllm" and self.policy.quantization is not None:
            raise ValueError(
                "rollout.backend vllm generates from whole weights with the adapters merged in, which rounds weights "
                f"of policy.quantization {self.policy.quantization} again. Leave one of the two out"
            )
        if self.rollout.backend == "servers" and self.policy.quantization is not None:
            raise ValueError(
                f"rollout.backend servers generates from whole weights in float32, not from policy.quantization "
                f"{self.policy.quantization}. Leave one of the two out"
            )
        if self.rollout.backend == "servers" and self.policy.dtype != "float32":
            raise ValueError(
                f"rollout.backend servers computes in float32, not in policy.dtype {self.policy.dtype}. Leave one of "
                "the two out"
            )
        highest = max(self.rollout.temperature, self.evaluation.temperature)
        if self.rollout.backend == "vllm" and highest > 2:
            raise ValueError(f"rollout.backend vllm samples at temperatures up to 2, not at {highest:g}. Lower it")
        if self.rollout.backend == "vllm" and self.training.importance_sampling_cap is None:
            raise ValueError(
                "rollout.backend vllm returns log-probabilities that differ from the learner's in the last digits. Set "
                "training.importance_sampling_cap, for example 2.0, which corrects it"
            )
        if self.rollout.informative_groups is not None and self.training.algorithm in ("ppo", "a2c"):
            raise ValueError(
                f"rollout.informative_groups counts groups with different rewards, but {self.training.algorithm} does "
                "not compare the rewards of a group. Leave it out"
            )
        return self

    @model_validator(mode="after")
    def _pass_gates_have_their_samples(self) -> Self:
        samples = self.evaluation.samples
        for gate in self.gates:
            if isinstance(gate, PassGate) and gate.k > samples:
                raise ValueError(
                    f"gates: pass_hat_k with k {gate.k} needs {gate.k} episodes of a scenario, but evaluation.samples "
                    f"is {samples}. Raise evaluation.samples, or lower k"
                )
        return self

    @model_validator(mode="after")
    def _the_gate_of_the_kl_can_measure(self) -> Self:
        temperature = self.evaluation.temperature
        if temperature < LEAST_KL_TEMPERATURE and any(isinstance(gate, KLGate) for gate in self.gates):
            raise ValueError(
                f"evaluation.temperature {temperature:g}: the gate kl compares log-probabilities at this temperature, "
                "where a single token that the base would not have chosen counts thousands of nats. Raise it to at "
                f"least {LEAST_KL_TEMPERATURE:g}, or list gates without kl"
            )
        return self

    @model_validator(mode="after")
    def _continuous_rollouts_are_trained_here(self) -> Self:
        training, sent = self.training, self.compute.gpu_stages
        unfit = {
            f"training.engine {training.engine}": training.engine != "learner",
            f"training.algorithm {training.algorithm}": training.algorithm == "dpo",
            "rollout in compute.gpu_stages.stages": sent is not None and "rollout" in sent.stages,
        }
        if self.rollout.mode == "stages":
            return self
        if faults := [setting for setting, is_unfit in unfit.items() if is_unfit]:
            raise ValueError(
                f"rollout.mode continuous cannot be combined with {', '.join(faults)}. Leave it out, or set "
                "rollout.mode to stages"
            )
        if training.importance_sampling_cap is None:
            raise ValueError(
                "rollout.mode continuous trains on tokens of earlier policies. Set training.importance_sampling_cap, "
                "for example 2.0, which corrects it"
            )
        return self

    @model_validator(mode="after")
    def _maximum_likelihood_has_rewards_from_0(self) -> Self:
        negative = next((part for part in self.reward if part.weight < 0), None)
        if self.training.algorithm == "maxrl" and negative is not None:
            raise ValueError(
                f"training.algorithm maxrl divides by the mean reward of a group, and reward {negative.kind} has the "
                f"weight {negative.weight:g}, so that rewards may be below 0. Leave it out, or use another algorithm"
            )
        return self

    @model_validator(mode="after")
    def _stale_rollouts_are_corrected(self) -> Self:
        if self.rollout.staleness and self.training.importance_sampling_cap is None:
            raise ValueError(
                f"rollout.staleness {self.rollout.staleness} trains on rollouts of the policy before. Set "
                "training.importance_sampling_cap, for example 2.0, which corrects it"
            )
        return self


def load_config(
    path: str | Path, overrides: tuple[str, ...] = (), *, overrides_in_config: bool = False
) -> PipelineConfig:
    """Read the config of a run, see `load_settings`. Modules in the file's folder that it names can be imported."""
    return load_settings(path, PipelineConfig, overrides, overrides_in_config=overrides_in_config)
