"""Settings of the policy update: algorithm, optimizer, critic, trust region and LoRA."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo.config.base import AppliesWhen, IgnoredWhen, Settings
from grpo.config.distillation import DistillationSettings

AlgorithmName = Literal[
    "grpo", "dr_grpo", "dapo", "gspo", "cispo", "maxrl", "rloo", "reinforce", "ppo", "a2c", "trpo", "dpo"
]
TurnRewardAdmission = Literal["off", "warn", "refuse"]
TRL_ALGORITHMS = ("grpo", "dr_grpo", "dapo", "gspo", "cispo")

_UPDATE_TIMEOUT_S = 14400.0

_NOT_TRL = IgnoredWhen("engine", ("trl",))
_NOT_DPO = IgnoredWhen("algorithm", ("dpo",))
_NOT_TRPO = IgnoredWhen("algorithm", ("trpo",))
_NOT_TRPO_DPO = IgnoredWhen("algorithm", ("trpo", "dpo"))
_GROUP_BASELINE = IgnoredWhen("algorithm", ("maxrl", "ppo", "a2c", "dpo"))
_SCALED = IgnoredWhen("algorithm", ("maxrl", "dpo"))
"""maxrl divides by the mean of a group, so that another scale of its rewards changes nothing."""
_CLIPPED = IgnoredWhen("algorithm", ("rloo", "reinforce", "a2c", "trpo", "dpo"))
_CLIPPED_BELOW = IgnoredWhen("algorithm", ("cispo", "rloo", "reinforce", "a2c", "trpo", "dpo"))
_NOT_CRITIC_TRPO_DPO = IgnoredWhen("algorithm", ("ppo", "a2c", "trpo", "dpo"))
_OFF_POLICY = IgnoredWhen("algorithm", ("rloo", "reinforce", "a2c"))
"""Without an importance ratio, only the first step on a rollout is unbiased."""


class LoraSettings(Settings):
    """LoRA (arXiv 2106.09685) with peft's names. The base weights stay frozen.

    Checkpoints hold only the adapters. They are merged into the registered model.
    """

    r: int = Field(default=16, ge=1)
    """Rank of each adapter."""
    lora_alpha: int = Field(default=32, ge=1)
    """An adapter's output is scaled by lora_alpha / r."""
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of the layers that get an adapter, or all linear layers except the head."""


class CriticSettings(Settings):
    """Value head of ppo and a2c on the policy's hidden states, with its own optimizer."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per completion token."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Horizon of the advantages (GAE): 0 is the next token, 1 the end of the episode."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """AdamW's learning rate of the value head."""
    epochs: int = Field(default=8, ge=1)
    """Steps of the critic on each rollout."""
    value_clip: float | None = Field(default=0.2, gt=0)
    """Clip range of the value loss: a value may change by this much in one update without a penalty. None uses the
    plain squared error."""


class TrustRegionSettings(Settings):
    """Natural-gradient step of trpo and its line search."""

    max_kl: float = Field(default=0.01, gt=0)
    """Largest KL(policy before the step ‖ after it) of a step, in nats per token."""
    damping: float = Field(default=0.1, ge=0)
    """Added to the diagonal of the Fisher matrix."""
    conjugate_gradient_steps: int = Field(default=10, ge=1)
    """Iterations of the conjugate gradient."""
    line_search_steps: int = Field(default=10, ge=1)
    """Halvings of the step to try before the policy is left unchanged."""


class TrainingSettings(Settings):
    """Policy update. If a setting is left out, it is as in the algorithm's paper."""

    algorithm: AlgorithmName = "grpo"
    """Advantage estimator, loss and aggregation."""
    engine: Literal["learner", "trl"] = "learner"
    """Training loop: this package's learner, or TRL's GRPOTrainer on the same Parquet."""
    baseline: Annotated[
        Literal["group_mean", "group_median", "leave_one_out", "global_mean"] | None, _GROUP_BASELINE, _NOT_TRL
    ] = None
    """Baseline that is subtracted from a reward. By default the algorithm's own."""
    scale_by_std: Annotated[bool | None, _SCALED] = None
    """Divide advantages by the group's standard deviation. By default as in the algorithm."""
    credit_assignment: Annotated[Literal["trajectory", "turn", "state"], _GROUP_BASELINE, _NOT_TRL] = "trajectory"
    """trajectory: one advantage for all turns of an episode. turn: one per turn, from its own return. state: the
    advantage of the trajectory, plus one per turn that compares the turns of the scenario's episodes in the same state
    of the world (GiGPO)."""
    state_discount: Annotated[float, AppliesWhen("credit_assignment", ("state",))] = Field(default=0.95, gt=0, le=1)
    """Discount per turn of the returns that are compared in a state. If it is below 1, a shorter way is better."""
    state_history: Annotated[int, AppliesWhen("credit_assignment", ("state",))] = Field(default=0, ge=0)
    """Turns in the same state are compared again for each h from 1 to this number, now only with turns that have the
    same h states before them (HGPO). 0 compares by the state only (GiGPO)."""
    turn_reward_admission: TurnRewardAdmission = "off"
    """Compare turn rewards with success in the first rollout, before anything is trained. refuse: the run ends unless
    their correlation within groups is shown to be above 0. warn: the log says so."""
    reward_clip: Annotated[float | None, _NOT_DPO, _NOT_TRL] = Field(default=None, gt=0)
    """Rewards are clipped to [-reward_clip, reward_clip]."""
    normalize_rewards: Annotated[bool, _SCALED, _NOT_TRL] = False
    """Divide the rewards of an iteration by their standard deviation, before the baseline is subtracted."""
    overlong_limit: Annotated[int | None, _NOT_DPO, _NOT_TRL] = Field(default=None, ge=1)
    """Episodes with this many completion tokens or more lose 1 reward (DAPO's overlong punishment). None disables
    it."""
    overlong_buffer: Annotated[int, AppliesWhen("overlong_limit"), _NOT_TRL] = Field(default=64, ge=1)
    """Tokens before overlong_limit over which the penalty grows from 0 to 1."""
    iterations: int = Field(default=20, ge=1)
    """Iterations of rollout, scoring and policy update."""
    learning_rate: Annotated[float, _NOT_TRPO] = Field(default=1e-4, ge=0)
    """AdamW's learning rate after the warm-up. With 0 the run stops, because the training would have no effect."""
    warmup_steps: Annotated[int, _NOT_TRPO] = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate rises from 0."""
    lr_scheduler_type: Annotated[Literal["constant", "linear", "cosine"], _NOT_TRPO] = "constant"
    """Decay of the learning rate over the iterations of the run."""
    groups_per_step: Annotated[int | None, _OFF_POLICY, _NOT_TRL] = Field(default=None, ge=1)
    """Informative groups (their rewards differ) per optimizer step. None takes the whole rollout in one step."""
    num_mini_batches: Annotated[int | None, IgnoredWhen("groups_per_step"), _OFF_POLICY, _NOT_DPO, _NOT_TRL] = Field(
        default=None, ge=1
    )
    """Optimizer steps per pass over a rollout, instead of groups_per_step. The episodes that have a gradient are
    shuffled and split into this many minibatches, or into one per episode if there are fewer. With groups_per_step a
    minibatch has whole groups, so that it has fewer prompts and is computed faster."""
    epochs: Annotated[int, _OFF_POLICY] = Field(default=1, ge=1)
    """Passes over each rollout."""
    clip_low: Annotated[float | None, _CLIPPED_BELOW] = Field(default=None, gt=0)
    """Clip range of the importance ratio below 1. By default the algorithm's published one."""
    clip_high: Annotated[float | None, _CLIPPED] = Field(default=None, gt=0)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]. For cispo, clip_high is the cap itself."""
    dual_clip: Annotated[float | None, _CLIPPED_BELOW] = Field(default=None, gt=1)
    """Largest ratio at a negative advantage (dual-clip PPO)."""
    importance_sampling_cap: Annotated[float | None, _NOT_DPO] = Field(default=None, ge=1)
    """Weight tokens by the importance ratio of policy to sampler, truncated to this. None does not weight them."""
    importance_sampling_mask: Annotated[float | None, AppliesWhen("importance_sampling_cap"), _NOT_TRL] = Field(
        default=None, gt=1
    )
    """Exclude a sequence if the geometric mean of its importance ratios of policy to sampler is above this or below
    its inverse. None keeps all sequences."""
    max_mismatch_kl: Annotated[float, AppliesWhen("importance_sampling_cap")] = Field(default=0.01, gt=0)
    """Largest KL(sampler ‖ policy), in nats per token, that importance_sampling_cap may correct. If it is larger, the
    run stops."""
    top_entropy_quantile: Annotated[float, _NOT_TRPO_DPO] = Field(default=1.0, gt=0, le=1)
    """Share of the tokens, the ones with the highest entropy, that the loss is on."""
    length_normalizer: Annotated[int, AppliesWhen("algorithm", ("dr_grpo",))] = Field(default=256, ge=1)
    """Constant that dr_grpo divides a sequence's loss by."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the reference policy. For dpo, the inverse temperature of the preferences."""
    entropy_coefficient: Annotated[float, _NOT_DPO] = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    distillation: Annotated[DistillationSettings | None, _NOT_CRITIC_TRPO_DPO, _NOT_TRL] = None
    """Distillation of a teacher on the policy's own tokens, next to the policy gradient or instead of it. None leaves
    it out."""
    weight_decay: Annotated[float, _NOT_TRPO] = Field(default=0.0, ge=0)
    """AdamW's weight decay."""
    adam_beta1: Annotated[float, _NOT_TRPO] = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the first moment."""
    adam_beta2: Annotated[float, _NOT_TRPO] = Field(default=0.99, ge=0, lt=1)
    """AdamW's decay of the second moment."""
    max_grad_norm: Annotated[float, _NOT_TRPO] = Field(default=1.0, gt=0)
    """Gradients with a larger norm are scaled down to it."""
    microbatch_tokens: int = Field(default=16384, ge=64)
    """Most tokens of one forward pass. A shared prefix counts once."""
    ratio_tolerance: Annotated[float, IgnoredWhen("importance_sampling_cap"), _NOT_DPO] = Field(default=1e-4, gt=0)
    """Largest distance of the importance ratio from 1 before the first step, averaged over the tokens of a row. In
    float32 an unlikely token is off by up to 3e-5, and a short reply may consist of such tokens only."""
    critic: Annotated[CriticSettings, AppliesWhen("algorithm", ("ppo", "a2c"))] = CriticSettings()
    """Value head of ppo and a2c."""
    trust_region: Annotated[TrustRegionSettings, AppliesWhen("algorithm", ("trpo",))] = TrustRegionSettings()
    """Step of trpo."""
    lora: Annotated[LoraSettings | None, _NOT_DPO, _NOT_TRL] = None
    """Train adapters instead of all weights."""
    precision: Annotated[Literal["fp32", "bf16", "fp16"], _NOT_TRPO_DPO, _NOT_TRL] = "fp32"
    """Precision of the matrices in a training pass. Weights, log-probabilities and losses stay in float32."""
    gradient_checkpointing: Annotated[bool, _NOT_DPO, _NOT_TRL] = False
    """Recompute activations in the backward pass instead of keeping them."""
    processes: Annotated[int, _NOT_TRL] = Field(default=1, ge=1)
    """Data-parallel processes of an optimizer step, on each node."""
    nodes: Annotated[int, _NOT_TRL] = Field(default=1, ge=1)
    """Machines of an optimizer step. The first runs the update, the others run `grpo train-node`."""
    sharding: Annotated[Literal["replicated", "sharded"], _NOT_TRL] = "replicated"
    """Each process holds all weights (DDP) or its shard of them (FSDP)."""
    update_timeout_s: float = Field(default=_UPDATE_TIMEOUT_S, gt=0)
    """Timeout of an update in several processes. After it, the stage is retried."""

    @property
    def workers(self) -> int:
        """Processes on all nodes."""
        return self.nodes * self.processes

    @property
    def teacher(self) -> str | None:
        """Address of the teacher of a distillation, if it is another model."""
        return None if self.distillation is None else self.distillation.teacher_model_name_or_path

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.engine == "trl" and self.algorithm not in TRL_ALGORITHMS:
            raise ValueError(f"engine trl does not support {self.algorithm}, only {', '.join(TRL_ALGORITHMS)}")
        if self.algorithm == "maxrl" and self.overlong_limit is not None:
            raise ValueError(
                "overlong_limit gives rewards below 0, and maxrl divides by the mean reward of a group; leave it out, "
                "or use another algorithm"
            )
        baseline = self.baseline or ("global_mean" if self.algorithm == "reinforce" else None)
        if self.credit_assignment != "trajectory" and baseline == "global_mean":
            raise ValueError(
                f"credit_assignment: {self.credit_assignment} needs a baseline of the group, but baseline is "
                f"{baseline}. Set baseline to group_mean or leave_one_out"
            )
        if self.algorithm == "dpo" and not self.beta:
            raise ValueError("dpo needs beta above 0, for example 0.1")
        if self.precision != "fp32" and self.importance_sampling_cap is None:
            raise ValueError(
                f"precision {self.precision} makes the learner's log-probabilities differ from the sampler's. "
                "Set importance_sampling_cap, for example 2.0, which corrects it"
            )
        if self.algorithm in ("trpo", "dpo") and self.workers > 1:
            raise ValueError(f"algorithm {self.algorithm} runs only in one process. Set processes and nodes to 1")
        if self.algorithm in ("ppo", "a2c") and self.sharding == "sharded":
            raise ValueError(
                f"the critic of {self.algorithm} needs whole models on each device. Set sharding to replicated"
            )
        if self.sharding == "sharded" and self.workers == 1:
            raise ValueError("sharding: sharded needs at least 2 processes")
        if self.update_timeout_s != _UPDATE_TIMEOUT_S and self.workers == 1:
            raise ValueError("update_timeout_s has no effect with processes 1. Leave it out")
        return self
