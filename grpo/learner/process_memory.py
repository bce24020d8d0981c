"""Memory estimate of one process of an update in several processes, replicated or sharded.

It counts the same parts as `grpo.learner.memory_estimate`. With sharded weights a process holds its share of them, and
gathers one unit at a time: a layer, or the embedding with the head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict

from grpo.config.training import TrainingSettings
from grpo.learner.memory_estimate import MemoryEstimate
from grpo.learner.model_sizes import ModelSizes

_FLOAT32 = 4
GATHERED = 5
"""Copies of the largest unit in a step: it is gathered into a buffer and copied out of it, and has a gradient, which is
copied into another buffer and reduced; a tied embedding has a second gradient. `make bench` measures seven with a unit
of 125 MiB, because it also counts the memory of PyTorch's kernels (docs/benchmarks.md, memory of sharded weights)."""


class ProcessMemory(BaseModel):
    """Bytes of one process of an update, by purpose."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    processes: int
    """Processes on all nodes."""
    sharded: bool
    state: int
    """Weights of the policy, its reference and a teacher, gradients and optimizer: this process's share, or all."""
    buffers: int
    """Gathered layers and their gradients if the weights are sharded. Otherwise the gradients that are sent."""
    activations: int | None
    """Activations of a pass, see `MemoryEstimate`."""
    load: int
    """Most that the process holds while it reads the weights: its share, or, below adapters, the whole base."""

    @property
    def peak(self) -> int:
        """The larger of the peaks of loading and training. Unknown activations count as 0."""
        return max(self.load, self.state + self.buffers + (self.activations or 0))

    def describe(self, size: Callable[[int], str]) -> str:
        """Line of a dry run. `size` formats a number of bytes."""
        share = "its share of " if self.sharded else ""
        return (
            f"memory of each of {self.processes} processes of an update: {size(self.peak)} at its peak, {share}"
            f"weights, gradients and optimizer {size(self.state)}, buffers {size(self.buffers)}, and activations, or "
            f"{size(self.load)} while it loads"
        )


def process_memory(
    estimate: MemoryEstimate, sizes: ModelSizes, training: TrainingSettings, *, teacher: ModelSizes | None = None
) -> ProcessMemory:
    """Memory of one of `training.workers` processes with float32 weights.

    `teacher` are the sizes of a distillation's teacher, if it is another model.
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
    models = 1 if training.lora is not None else 2  # with adapters the policy is its own reference
    taught = 0 if teacher is None else teacher.parameters * _FLOAT32
    weights = models * sizes.parameters * _FLOAT32
    return ProcessMemory(
        processes=training.workers,
        sharded=True,
        state=-(-(weights + taught + estimate.gradients + estimate.optimizer) // training.workers),
        buffers=(GATHERED * largest_unit(sizes) + (0 if teacher is None else largest_unit(teacher))) * _FLOAT32,
        activations=estimate.activations,
        load=weights if training.lora is not None else -(-weights // training.workers),
    )


def largest_unit(sizes: ModelSizes) -> int:
    """Weights of the largest unit that is gathered: the embedding and a separate head, or one layer."""
    config: Any = sizes.config.get_text_config()
    around = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    return max(around, (sizes.parameters - around) // config.num_hidden_layers)
