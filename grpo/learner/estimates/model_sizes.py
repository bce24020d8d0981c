"""Sizes of a model that is trained, from only its config.json.

The sizes of a plain model follow from the config, without PyTorch. If the model is not a plain one, gets adapters, or
has to recompute activations, it is built without memory for its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.config.training import TrainingSettings
from grpo.policy.plain_models import plain_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from grpo.policy.context import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Numbers of weights of a model."""

    config: ModelConfig
    parameters: int
    """Number of parameters, adapters included."""
    trained: int
    """Number of trained parameters."""
    trained_tensors: int


def model_sizes(folder: Path, training: TrainingSettings, build: Callable[[], PreTrainedModel]) -> ModelSizes:
    """Sizes of the model in a folder. If they do not follow from its config, `build` makes it without weights."""
    plain = plain_config(folder)
    if plain is not None and training.lora is None and not training.gradient_checkpointing:
        sizes = plain.parameter_sizes()
        return ModelSizes(config=plain, parameters=sum(sizes), trained=sum(sizes), trained_tensors=len(sizes))
    model = build()
    trained = [tensor.numel() for tensor in model.parameters() if tensor.requires_grad]
    return ModelSizes(
        config=model.config,
        parameters=sum(tensor.numel() for tensor in model.parameters()),
        trained=sum(trained),
        trained_tensors=len(trained),
    )
