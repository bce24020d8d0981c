"""Models without memory for their weights, with the adapters that are trained."""

from __future__ import annotations

from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedModel

from grpo.config.training import TrainingSettings
from grpo.errors import PolicyError
from grpo.policy.transformers.adapters import add_adapters
from grpo.policy.transformers.wrappers import auto_class, freeze_towers


def empty_model(folder: Path, training: TrainingSettings) -> PreTrainedModel:
    """The model of a config.json without memory for its weights, with the adapters that are trained.

    Raises `PolicyError` if the folder has no model, and `ConfigError` if the adapters do not fit its layers.
    """
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            loading = auto_class(config.model_type, config.architectures)
            model: PreTrainedModel = loading.from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        raise PolicyError(f"no model in {folder}: {error}. Set policy.model to a model folder") from error
    model.tie_weights()
    freeze_towers(model)
    if training.lora is not None:
        with torch.device("meta"):
            add_adapters(model, training.lora, seed=0)
    return model
