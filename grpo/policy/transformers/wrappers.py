"""Models that read text and other inputs: the class that loads a folder, and the part that text passes through.

Such a wrapper (Mistral 3, Qwen2-VL, LLaVA, Gemma 3, Llama 4) is loaded whole, but only its text model is trained. The
other towers are frozen, so that the saved model has the published architecture and their original weights.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from grpo.policy.model_files import PROCESSOR_FILES

OTHER_TOWER = re.compile(r"(^|\.)(vision|visual|image|audio|multi_modal|embed_vision|embed_audio)\w*(\.|$)")
"""Names of the modules of vision and audio towers. Used only if the config does not separate the text model."""


def auto_class(kind: str, architectures: Sequence[str] | None) -> Any:
    """Class of transformers that loads a config of type `kind` with the weights of `architectures`."""
    wrapper = MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.get(kind)
    is_whole = kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or wrapper in (architectures or ())
    return AutoModelForMultimodalLM if wrapper is not None and is_whole else AutoModelForCausalLM


def is_loadable(model: PreTrainedModel) -> bool:
    """True if transformers can load the model again from what it saves."""
    kind = model.config.model_type
    wrapper = MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.get(kind)
    return kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or type(model).__name__ == wrapper


def other_towers(model: PreTrainedModel) -> list[str]:
    """Names of the outermost modules that no text passes through.

    The text model of a wrapper is the decoder, the embedding that feeds it, and the head. If a model has no separate
    text config (Phi-4-multimodal), its towers are recognized by their names.
    """
    text = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    kept = {id(part) for whole in text if isinstance(whole, nn.Module) for part in whole.modules()}
    is_wrapper = _is_wrapper(model)
    names: list[str] = []
    for name, module in model.named_modules():
        if not name or any(name.startswith(f"{outer}.") for outer in names):
            continue
        is_other = not any(id(part) in kept for part in module.modules()) if is_wrapper else OTHER_TOWER.search(name)
        if is_other:
            names.append(name)
    return names


def freeze_towers(model: PreTrainedModel) -> None:
    """Freeze the towers of a wrapper, so that they have no gradient and take no memory of the optimizer."""
    for name in other_towers(model):
        model.get_submodule(name).requires_grad_(False)


def processor_files(folder: Path) -> dict[str, bytes]:
    """Contents, by name, of the files in a folder that describe its other inputs."""
    return {name: (folder / name).read_bytes() for name in PROCESSOR_FILES if (folder / name).is_file()}


def _is_wrapper(model: PreTrainedModel) -> bool:
    config = model.config
    return config.get_text_config() is not config and not getattr(config, "is_encoder_decoder", False)
