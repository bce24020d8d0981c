"""Memory estimate of a training from the sizes of its model, without reading weights.

For the sizes see `model_sizes`. Weights, gradients and optimizer are exact, and the KV cache is an upper
bound. Activations are estimated from the vectors that a layer keeps for a token. Their true size depends on the length
of shared prefixes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from grpo.config.training import TrainingSettings
from grpo.learner.estimates.model_sizes import ModelSizes

if TYPE_CHECKING:
    from grpo.policy.context import ModelConfig
    from grpo.policy.transformers.dtype import Dtype

_FLOAT32, _BFLOAT16 = 4, 2
_STATES = 12
"""Vectors of the hidden size that a layer keeps for a token: norms, queries, attention outputs. With this and the next
two numbers the estimate is within 3 % of PyTorch's memory for 1007, 2978 and 6077 tokens of the shipped default."""
_GATED = 4
"""Vectors of the intermediate size that a layer's gated MLP keeps for a token."""
_KEYS_AND_VALUES = 2.0
"""Copies of the keys and values that a layer keeps for a token: its own, and one for its descendants."""


class MemoryEstimate(BaseModel):
    """Bytes of a training, by purpose."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parameters: int
    """Number of parameters, adapters included."""
    trained: int
    """Number of trained parameters."""
    copies: int
    """Models in memory: the policy, its reference unless adapters are trained, and, with an importance-sampling cap,
    the sampler. A teacher is not one of them."""
    weights: int
    """Weights of all copies and of a teacher that is another model, and their rounded weights in bfloat16."""
    teacher: int = 0
    """Number of parameters of a teacher that is another model."""
    checked: int = 0
    """Weights of the version with which rollout servers generate while the next version is sent to them. The process
    checks their turns with these weights. Servers that lag behind by several updates need one more model for each."""
    gradients: int
    optimizer: int
    """Two moments of each trained parameter, and a step count of each tensor."""
    activations: int | None
    """Approximate activations of one pass of microbatch_tokens tokens. None if the layers are not attention and gated
    MLPs, because the formulas describe no others."""
    cache: int | None
    """KV cache of all concurrent episodes at their full length, an upper bound. None if `activations` is None."""

    @property
    def models(self) -> str:
        """Models in memory, in words: `2 × 1,000 parameters, and a teacher of 5,000`."""
        teacher = f", and a teacher of {self.teacher:,}" if self.teacher else ""
        return f"{self.copies + (self.checked > 0)} × {self.parameters:,} parameters{teacher}"

    @property
    def peak(self) -> int:
        """The larger of the peaks of training and rollout. Unknown parts count as 0."""
        return (
            self.weights
            + self.checked
            + max(self.gradients + self.optimizer + (self.activations or 0), self.cache or 0)
        )


def memory_estimate(
    sizes: ModelSizes,
    training: TrainingSettings,
    *,
    episodes: int,
    max_context: int,
    dtype: Dtype = "float32",
    teacher: ModelSizes | None = None,
    keeps_parent: bool = False,
    checks_earlier_version: bool = False,
) -> MemoryEstimate:
    """Memory of a training in one process with up to `episodes` concurrent episodes of `max_context` tokens.

    `teacher` are the sizes of a distillation's teacher, if it is another model. `keeps_parent` is true if rollouts go
    on with the parent, so that an update trains a copy. `checks_earlier_version` is true for a continuous rollout on
    servers. Turns of the newest version are checked with the parent. If the `dtype` is bfloat16, policies keep their
    float32 weights as well, except weights under adapters. The critic of ppo and a2c, a quantized base, and the
    overhead of libraries are not counted.
    """
    counts = sizes.parameters, sizes.trained
    moments = 0 if training.algorithm == "trpo" else 2 * counts[1] + sizes.trained_tensors  # it has no optimizer
    shared = training.lora is not None
    copies = (1 if shared else 2) + keeps_parent
    taught = 0 if teacher is None else _weights((teacher.parameters, 0), dtype=dtype, adapters=False)
    return MemoryEstimate(
        parameters=counts[0],
        trained=counts[1],
        copies=copies,
        weights=copies * _weights(counts, dtype=dtype, adapters=shared) + taught,
        teacher=0 if teacher is None else teacher.parameters,
        checked=_weights(counts, dtype=dtype, adapters=shared) if checks_earlier_version else 0,
        gradients=counts[1] * _FLOAT32,
        optimizer=moments * _FLOAT32,
        activations=_activations(sizes.config, training),
        cache=kv_cache_bytes(sizes.config, episodes=episodes, max_context=max_context),
    )


def _weights(counts: tuple[int, int], *, dtype: Dtype, adapters: bool) -> int:
    """Bytes of the weights of one policy. `counts` are the numbers of all and of trained parameters."""
    parameters, trained = counts
    if dtype == "float32":
        return parameters * _FLOAT32
    if adapters:
        return (parameters - trained) * _BFLOAT16 + trained * _FLOAT32
    return parameters * (_FLOAT32 + _BFLOAT16)


def kv_cache_bytes(model: ModelConfig, *, episodes: int, max_context: int) -> int | None:
    """KV cache of episodes at their full length. None if the layers are not attention and gated MLPs."""
    config: Any = model.get_text_config()
    if not _has_sizes(config):
        return None
    longest = min(max_context, config.max_position_embeddings)
    return episodes * longest * int(config.num_hidden_layers) * _kv_size(config) * _FLOAT32


def _has_sizes(config: Any) -> bool:
    sizes = ("num_attention_heads", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings")
    return all(isinstance(getattr(config, size, None), int) for size in sizes)


def _kv_size(config: Any) -> int:
    """Elements of the keys and values of a layer for a token."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * int(width) * int(getattr(config, "num_key_value_heads", heads) or heads)


def _activations(model: ModelConfig, training: TrainingSettings) -> int | None:
    """Activations of a pass, if the config has the sizes of attention and gated MLPs."""
    config: Any = model.get_text_config()
    if not _has_sizes(config):
        return None
    kept = _STATES * config.hidden_size + _GATED * config.intermediate_size + _KEYS_AND_VALUES * _kv_size(config)
    if training.gradient_checkpointing:
        layers_kept = config.num_hidden_layers * config.hidden_size + kept
    else:
        layers_kept = config.num_hidden_layers * kept
    compression = 1 if training.precision == "fp32" else 2
    return int(training.microbatch_tokens * layers_kept * _FLOAT32 / compression)
