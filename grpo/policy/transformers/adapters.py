"""LoRA through peft: small matrices are trained beside weights that stay as they are."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import PreTrainedModel

from grpo.config.training import LoraSettings
from grpo.errors import ConfigError

CONFIG = "adapter_config.json"


def add_adapters(model: PreTrainedModel, settings: LoraSettings, *, seed: int) -> None:
    """Give a model untrained adapters, which change nothing yet, and freeze its own weights.

    Raises `ConfigError` for a name in `target_modules` that no linear layer has.
    """
    from peft import LoraConfig  # 4 s, which runs without adapters need not pay

    targets = settings.target_modules
    names = {name.rsplit(".", 1)[-1] for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)}
    missing = [] if isinstance(targets, str) else [target for target in targets if target not in names]
    if missing:
        raise ConfigError(
            f"training.lora.target_modules {missing!r} fits no layer of {type(model).__name__}; its linear layers are "
            f"{', '.join(sorted(names))}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.add_adapter(
            LoraConfig(
                r=settings.r,
                lora_alpha=settings.lora_alpha,
                target_modules=targets if isinstance(targets, str) else list(targets),
                lora_dropout=0.0,
                bias="none",
            )
        )
    model.eval()


def has_adapters(model: PreTrainedModel) -> bool:
    """Whether a model carries adapters."""
    return bool(getattr(model, "peft_config", None))


@contextmanager
def without_adapters(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """The model as it was before it was given adapters; one that has none as it is. No copy is made."""
    if not has_adapters(model):
        yield model
        return
    model.disable_adapters()
    try:
        yield model
    finally:
        model.enable_adapters()


def merge_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model with the adapters added to its weights, which needs no peft; without adapters, itself."""
    if not has_adapters(model):
        return model
    from peft.tuners.tuners_utils import BaseTunerLayer

    whole = copy.deepcopy(model)
    for name, layer in list(whole.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            layer.merge()
            whole.set_submodule(name, layer.get_base_layer())
    del whole.peft_config
    whole._hf_peft_config_loaded = False
    return whole.requires_grad_(True)


def load_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Put the adapters that lie in `folder` on their base model."""
    conversions = getattr(model, "_weight_conversions", None)
    model.load_adapter(str(folder), use_safetensors=True, is_trainable=True)
    model._weight_conversions = conversions  # the adapters left theirs, which would misname merged weights on disk
    model.eval()
