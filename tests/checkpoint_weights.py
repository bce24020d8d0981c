"""Weights of two checkpoints, compared by the step that an optimizer made.

Adam divides a gradient by its own size. Where that is below Adam's epsilon (1e-8), the order in which a processor adds
moves a weight by percents of the learning rate, or by all of it. So no bound holds for the largest difference of a
weight, and one does for the distance over all weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

Weights = Mapping[str, torch.Tensor]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of a checkpoint by name: of the whole model, or of its adapters."""
    adapters = folder / "adapter_model.safetensors"
    return load_file(adapters if adapters.is_file() else folder / "model.safetensors")


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Weights of a model by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def largest_difference(left: Weights, right: Weights) -> float:
    """Largest difference of a weight."""
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def share_of_the_step(left: Weights, right: Weights, start: Weights) -> float:
    """Distance of `right` from `left` (2-norm over all weights) as a share of the step from `start` to `left`."""
    assert left.keys() == right.keys() == start.keys()
    apart = sum(float((left[name] - right[name]).square().sum()) for name in left)
    step = sum(float((left[name] - start[name]).square().sum()) for name in left)
    return (apart / step) ** 0.5
