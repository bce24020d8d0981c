"""LoRA adapters through peft: low-rank matrices are trained, the base weights are frozen."""

from __future__ import annotations

import copy
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.func import functional_call
from transformers import PreTrainedModel

from grpo.config.training import LoraSettings
from grpo.errors import ConfigError, PolicyError
from grpo.policy.model_files import ADAPTER_WEIGHTS, read_object
from grpo.policy.transformers.sharding import gather_full
from grpo.policy.transformers.wrappers import other_towers

CONFIG = "adapter_config.json"
_FUSED_PROJECTIONS = {"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"}
"""Model types with output projections that peft refuses to adapt."""
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initializations of peft that subtract from the weights of the base."""
_MERGED_TOLERANCE = 1e-2
"""Largest difference of log-probabilities that rounding explains when adapters are merged, even in unstable models."""
_PREFIX = "base_model.model."
"""Prefix of peft's names of adapters on disk."""


_parametrization = threading.RLock()
"""Lock of the forward passes of adapted parameters. During such a pass peft replaces the parameter, and PyTorch caches
the sum of base and adapter for all threads."""


def copy_model(model: PreTrainedModel) -> PreTrainedModel:
    """Copy of a model, made while no thread is in a forward pass of its adapted parameters."""
    with _parametrization:
        return copy.deepcopy(model)


def _guard_parameters(model: PreTrainedModel) -> None:
    """Let only one thread at a time run a forward pass of adapted parameters (packed experts and routers)."""
    from peft.tuners.lora.layer import ParamWrapper

    for layer in model.modules():
        if isinstance(layer, ParamWrapper):
            layer.register_forward_pre_hook(_enter)
            layer.register_forward_hook(_leave, always_call=True)


def _enter(layer: torch.nn.Module, inputs: object) -> None:
    _parametrization.acquire()


def _leave(layer: torch.nn.Module, inputs: object, output: object) -> None:
    _parametrization.release()


def add_adapters(model: PreTrainedModel, settings: LoraSettings, *, seed: int) -> None:
    """Add untrained adapters, which do not change the output yet, and freeze the model's own weights.

    Raises `ConfigError` if no linear layer has a name in `target_modules`, or if a named layer shares its weights with
    another one, because merging its adapter would change both.
    """
    from peft import LoraConfig  # takes 4 s, skipped by runs without adapters

    targets = settings.target_modules
    names = {name.rsplit(".", 1)[-1] for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)}
    missing = [] if isinstance(targets, str) else [target for target in targets if target not in names]
    if missing:
        raise ConfigError(
            f"training.lora.target_modules {missing!r} fits no layer of {type(model).__name__}. Its linear layers are "
            f"{', '.join(sorted(names))}"
        )
    shared = [name for name in _sharing_weights(model) if name.rsplit(".", 1)[-1] in targets]
    if shared and not isinstance(targets, str):
        raise ConfigError(
            f"training.lora.target_modules: leave {shared[0].rsplit('.', 1)[-1]} out, because {shared[0]} has the same "
            "weights as another layer, so that merged adapters would change both"
        )
    with torch.random.fork_rng(devices=[]), _without_notices():
        torch.manual_seed(seed % 2**64)
        model.add_adapter(
            LoraConfig(
                r=settings.r,
                lora_alpha=settings.lora_alpha,
                target_modules=targets if isinstance(targets, str) else list(targets),
                lora_dropout=0.0,
                bias="none",
                exclude_modules=_without_adapter(model) if isinstance(targets, str) else None,
                task_type="CAUSAL_LM",
            )
        )
    _guard_parameters(model)
    model.eval()


def _without_adapter(model: PreTrainedModel) -> list[str]:
    """Names of the linear layers that `all-linear` leaves out.

    It leaves out the towers of other inputs (images, sound), layers with a fused kernel that reads the weight itself
    (because peft refuses to adapt them), layers that share their weights, and routers and grouped projections (because
    they return something other than the product with their weight).
    """
    names = ["out_proj", "conv1d"] if model.config.model_type in _FUSED_PROJECTIONS else []
    names += _sharing_weights(model)
    towers = other_towers(model)
    for name, layer in model.named_modules():
        if any(f"{name}.".startswith(f"{tower}.") for tower in towers):
            names.append(name)
            continue
        is_derived = isinstance(layer, torch.nn.Linear) and type(layer).__module__.startswith("transformers.models.")
        if is_derived and not _is_product(layer):
            names.append(name)
    return names


def _sharing_weights(model: PreTrainedModel) -> list[str]:
    """Names of the linear layers that share their weights with another layer, e.g. in blocks that a model repeats."""
    layers = [
        (name, layer)
        for name, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, torch.nn.Linear)
    ]
    users = Counter(id(layer.weight) for _, layer in layers)
    return [name for name, layer in layers if users[id(layer.weight)] > 1]


@torch.no_grad()
def _is_product(layer: torch.nn.Linear) -> bool:
    """True if a layer maps one vector to one vector, which routers and grouped projections do not do."""
    weights = {name: gather_full(parameter) for name, parameter in layer.named_parameters()}
    try:
        output = functional_call(layer, weights, (weights["weight"].new_zeros(1, layer.in_features),))
    except RuntimeError:  # the layer expects another shape than its weight suggests
        return False
    return isinstance(output, torch.Tensor) and output.shape == (1, layer.out_features)


@contextmanager
def _without_notices() -> Iterator[None]:
    """Suppress peft's warnings about settings that peft made itself: expert rank patterns, transposed GPT-2 layers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys", category=RuntimeWarning)
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False", category=UserWarning)
        yield


def has_adapters(model: PreTrainedModel) -> bool:
    """Check if a model has adapters."""
    return bool(getattr(model, "peft_config", None))


@contextmanager
def without_adapters(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Disable adapters, and the modules and tokens trained together with them, inside the context, without a copy."""
    if not has_adapters(model):
        yield model
        return
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    # transformers' disable_adapters also disables whole trained modules, but its enable_adapters does not enable them
    parts = [part for part in model.modules() if isinstance(part, (BaseTunerLayer, AuxiliaryTrainingWrapper))]
    for part in parts:
        part.enable_adapters(False)
    try:
        yield model
    finally:
        for part in parts:
            part.enable_adapters(True)


def merge_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """Copy the model with its adapters merged into the weights, or return the model itself if it has no adapters.

    Raises `PolicyError` if peft cannot merge an adapter, or if the merged weights compute something else than the
    adapters did, e.g. because the head shares an adapted embedding.
    """
    if not has_adapters(model):
        return model
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    merged = copy_model(model).float()  # a base in bfloat16 would round the sums
    expected = _logprobs(merged)
    wrappers = {name: part for name, part in merged.named_modules() if isinstance(part, AuxiliaryTrainingWrapper)}
    for name, wrapper in wrappers.items():  # whole modules, or embeddings of some tokens
        merged.set_submodule(
            name, wrapper.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
        )
    layers = {name: layer for name, layer in merged.named_modules() if isinstance(layer, BaseTunerLayer)}
    try:
        for layer in layers.values():
            layer.merge()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise PolicyError(f"adapters of {type(model).__name__} cannot be merged: {error}") from error
    for name, layer in layers.items():
        if not name.endswith(".base_layer"):  # else it is nested in the adapter of another tensor of the same experts
            merged.set_submodule(name, layer.get_base_layer())
    head, embedding = (
        getattr(part, "weight", None) for part in (merged.get_output_embeddings(), merged.get_input_embeddings())
    )
    if head is not None and head is not embedding:
        merged.config.get_text_config().tie_word_embeddings = False  # only one of them was trained, so they differ
    del merged.peft_config
    merged._hf_peft_config_loaded = False
    distance = float((_logprobs(merged) - expected).abs().max())
    if not distance <= _MERGED_TOLERANCE:
        targets = ", ".join(sorted({name.rsplit(".", 1)[-1] for name in layers}))
        raise PolicyError(
            f"adapters of {type(model).__name__} on {targets} cannot be merged: the merged weights are off by "
            f"{distance:.1e} nats. Leave out layers that share their weights with another one"
        )
    return merged.requires_grad_(True)


@torch.no_grad()
def _logprobs(model: PreTrainedModel) -> torch.Tensor:
    """Log-probabilities of the vocabulary after a few tokens, [tokens, vocabulary]."""
    ids = torch.arange(8, device=model.device)[None] + 8
    return torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float(), dim=-1)


def _check_adapter_config(folder: Path) -> None:
    """Refuse adapters that change the base: without its adapters, the model would not be the reference any more."""
    config = read_object(folder / CONFIG)
    initialization = str(config.get("init_lora_weights", True)).lower()
    if (config.get("bias") or "none") != "none":
        fault = f"train biases of the base (bias {config['bias']!r})"
    elif initialization.startswith(_CHANGES_BASE):
        fault = f"are relative to a base that their initialization changes (init_lora_weights {initialization!r})"
    elif config.get("layer_replication"):
        fault = "repeat layers of the base (layer_replication)"
    else:
        return
    raise PolicyError(
        f"adapters in {folder} {fault}, so that the model without them is not its base. Merge them with peft's "
        "merge_and_unload, and use the merged model"
    )


def load_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Load the adapters in `folder` onto their base model.

    transformers renames tensors that its earlier releases wrote, but some of its rules also rename current names. So if
    the names and shapes in the file equal the model's own, the tensors are copied by name instead.

    Raises `PolicyError` if the adapters change the base, cannot be loaded, or belong to another model.
    """
    _check_adapter_config(folder)
    conversions = getattr(model, "_weight_conversions", None)
    try:
        with _without_notices():
            report = model.load_adapter(str(folder), use_safetensors=True, is_trainable=True)
    except Exception as error:  # the config comes from other people and can fail in any way
        sizes = "ignore_mismatched_sizes" in str(error)
        reason = "their sizes do not fit its config and base" if sizes else f"{type(error).__name__}: {error}"
        raise PolicyError(
            f"cannot load the adapters in {folder}: {reason}. Correct adapter_config.json and the "
            "base_model_name_or_path in it, or save them again"
        ) from error
    model._weight_conversions = conversions  # the adapters' conversions would misname merged weights on disk
    given = {name.removeprefix(_PREFIX): tensor for name, tensor in load_file(folder / ADAPTER_WEIGHTS).items()}
    own: dict[str, torch.Tensor] = model.get_adapter_state_dict()
    if {name: tensor.shape for name, tensor in given.items()} == {name: tensor.shape for name, tensor in own.items()}:
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(given[name])
    elif report.missing_keys or report.unexpected_keys:
        raise PolicyError(
            f"adapters in {folder} do not fit {type(model).__name__}: without weights are "
            f"{sorted(report.missing_keys)[:3]}, without a layer {sorted(report.unexpected_keys)[:3]}. Correct "
            "base_model_name_or_path in adapter_config.json"
        )
    _guard_parameters(model)
    model.eval()
