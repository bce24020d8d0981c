"""Memory estimate of one process of an update in several processes, replicated or sharded.

It counts the same parts as `grpo.learner.estimates.memory`. With sharded weights a process holds its share of them, and
gathers one unit at a time: a layer, or the embedding with the head. Adapters are whole in each process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from grpo.config.training import TrainingSettings
from grpo.learner.estimates.memory import MemoryEstimate
from grpo.learner.estimates.model_sizes import ModelSizes

if TYPE_CHECKING:
    from grpo.policy.transformers.dtype import Dtype

_FLOAT32 = 4
_BYTES = {"float32": _FLOAT32, "bfloat16": 2}
GATHERED = 5
"""Copies of the largest unit in a step: it is gathered into a buffer and copied out of it, and has a gradient, which is
copied into another buffer and reduced; a tied embedding has a second gradient. `make bench` measures 4.9 and 5.3 with a
unit of 125 MiB (docs/internals/benchmarks.md, memory of sharded weights). With policy.dtype bfloat16 only the gradient
that is reduced is in float32."""
FROZEN = 3
"""The same of a base under adapters, which has no gradient: a unit, the buffer that it was gathered into, and the
buffer of the next unit. `make bench` measures 4.6 and 4.7, of which activations are 1.7."""


class ProcessMemory(BaseModel):
    """Bytes of one process of an update, by purpose."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    processes: int
    """Processes on all nodes."""
    sharded: bool
    state: int
    """Weights of the policy, its reference and a teacher, gradients and optimizer: this process's share, or all."""
    adapters: int = 0
    """Part of the state that is whole in each process while the base is sharded: adapters, their gradients and their
    optimizer."""
    buffers: int
    """Gathered layers and their gradients if the weights are sharded. Otherwise, and with adapters, the gradients that
    are sent."""
    activations: int | None
    """Activations of a pass, see `MemoryEstimate`."""
    load: int
    """Most that the process holds while it reads the weights: its share and all adapters, or everything."""

    @property
    def peak(self) -> int:
        """The larger of the peaks of loading and training. Unknown activations count as 0."""
        return max(self.load, self.state + self.buffers + (self.activations or 0))

    def describe(self, size: Callable[[int], str]) -> str:
        """Line of a dry run. `size` formats a number of bytes."""
        share = "its share of " if self.sharded else ""
        whole = f" (of it {size(self.adapters)} of adapters, which are not sharded)" if self.adapters else ""
        return (
            f"memory of each of {self.processes} processes of an update: {size(self.peak)} at its peak, {share}"
            f"weights, gradients and optimizer {size(self.state)}{whole}, buffers {size(self.buffers)}, and "
            f"activations, or {size(self.load)} while it loads"
        )


def process_memory(
    estimate: MemoryEstimate,
    sizes: ModelSizes,
    training: TrainingSettings,
    *,
    dtype: Dtype = "float32",
    teacher: ModelSizes | None = None,
) -> ProcessMemory:
    """Memory of one of `training.workers` processes.

    `dtype` is the one of the passes. Sharded weights stay in float32, and are rounded to it when they are gathered, but
    a base under adapters is held in it. `teacher` are the sizes of a distillation's teacher, if it is another model.
    """
    weights = estimate.weights
    if training.sharding == "replicated":
        return ProcessMemory(
            processes=training.workers,
            sharded=False,
            state=weights + estimate.gradients + estimate.optimizer,
            buffers=estimate.gradients,
            activations=estimate.activations,
            load=weights,
        )
    item, unit = _BYTES[dtype], largest_unit(sizes)
    adapters, read_whole = 0, 0
    if training.lora is None:
        read = 2 * sizes.parameters * _FLOAT32  # with the reference
        shared = read + estimate.gradients + estimate.optimizer
        buffers = unit * ((GATHERED - 1) * item + _FLOAT32)
    else:  # the policy is its own reference
        frozen, read_whole = sizes.parameters - sizes.trained, sizes.trained * _FLOAT32
        adapters = read_whole + estimate.gradients + estimate.optimizer
        shared = frozen * item
        # read in float32, and held in both forms while it is rounded
        read = frozen * (_FLOAT32 if dtype == "float32" else _FLOAT32 + item)
        buffers = unit * FROZEN * item + estimate.gradients
    if teacher is not None:
        shared += teacher.parameters * _FLOAT32
        buffers += largest_unit(teacher) * item
    return ProcessMemory(
        processes=training.workers,
        sharded=True,
        state=-(-shared // training.workers) + adapters,
        adapters=adapters,
        buffers=buffers,
        activations=estimate.activations,
        load=-(-read // training.workers) + read_whole,
    )


def largest_unit(sizes: ModelSizes) -> int:
    """Weights of the largest unit that is gathered: the embedding and a separate head, or one layer."""
    config: Any = sizes.config.get_text_config()
    around = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    return max(around, (sizes.parameters - around) // config.num_hidden_layers)
