"""Loading, hashing, saving and caching of causal language models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.distributed import DistributedConfig
from transformers.utils.logging import disable_progress_bar

from grpo.errors import CapacityError, PolicyError
from grpo.policy.context import context_limit
from grpo.policy.model_files import (
    ADAPTERS,
    check_architecture,
    check_model_files,
    first_line,
    quantization_of,
    tokenizer_folder,
)
from grpo.policy.policy import Sampler
from grpo.policy.tokenizer import load_tokenizer
from grpo.policy.transformers.adapters import has_adapters, load_adapters, merge_adapters
from grpo.policy.transformers.dtype import Dtype, cast_frozen, copy_in
from grpo.policy.transformers.exactness import PathCheck, choose_path, set_path
from grpo.policy.transformers.forward.passes import is_out_of_memory
from grpo.policy.transformers.quantization import Quantization, bitsandbytes_config, published_quantization
from grpo.policy.transformers.sampling.catalog import make_sampler
from grpo.policy.transformers.sharding import gather_full, is_sharded_model, parts, sharded_class
from grpo.policy.transformers.weight_stream import has_layout_of, write_weights
from grpo.policy.transformers.wrappers import OTHER_TOWER, auto_class, freeze_towers, is_loadable, processor_files
from grpo.renderers.chat_template import Renderer, rendering_tokenizer

disable_progress_bar()

_ALIGNMENT = 64
"""PyTorch allocates tensors on a CPU at multiples of this number of bytes."""


class TransformersPolicy:
    """A causal language model in this process, with its tokenizer.

    Raises `PolicyError` if no forward path computes the model exactly, if it cannot be reloaded from a checkpoint, or
    if it does not embed all tokens of the tokenizer.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        policy_hash: str | None = None,
        path_check: PathCheck | None = None,
    ) -> None:
        if not is_loadable(model):
            raise PolicyError(
                f"{type(model).__name__} is refused, because transformers does not load what it saves, a config of "
                f"type {model.config.model_type!r}, as a causal language model. Choose another model"
            )
        _check_embeddings(model, tokenizer)
        freeze_towers(model)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.hash = policy_hash or weights_hash(model)
        self.path_check = path_check or choose_path(model, self.hash)
        if path_check is not None:
            set_path(model, path_check)
        self._held: TransformersPolicy | None = None
        """This policy with its weights in bfloat16."""

    def in_dtype(self, dtype: Dtype) -> TransformersPolicy:
        """This policy version with its weights held in a dtype, copied once.

        With adapters, or with sharded weights, it is returned unchanged, because it was loaded in the dtype.
        """
        if dtype == "float32" or has_adapters(self.model) or is_sharded_model(self.model):
            return self
        if self._held is None:
            model = copy_in(self.model, dtype)
            self._held = TransformersPolicy(model, self.tokenizer, policy_hash=self.hash)
        self._held.hash = self.hash
        return self._held

    @property
    def max_context(self) -> int:
        """Maximum number of tokens in the model's context, see `context_limit`."""
        return context_limit(self.model.config)

    @property
    def merged_hash(self) -> str | None:
        """Hash of the weights with the adapters merged in, from which a run may start; None without adapters."""
        return weights_hash(merge_adapters(self.model)) if has_adapters(self.model) else None

    def sampler(self, *, concurrency: int, renderer: Renderer) -> AbstractAsyncContextManager[Sampler]:
        """See `Policy.sampler`."""
        return make_sampler(
            self.model,
            stop_ids=renderer.stop_ids,
            concurrency=concurrency,
            max_context=self.max_context,
            policy_hash=self.hash,
        )

    def save(self, folder: Path) -> None:
        """Write config, safetensors weights, tokenizer, chat template, and the files that describe other inputs.

        Of a model with adapters only the adapters are written, also if its base is sharded.
        """
        self.model.save_pretrained(folder, state_dict=_whole_weights(self.model), safe_serialization=True)
        self._save_inputs(folder)

    def save_sharded(self, folder: Path, *, source: Path, write: bool) -> None:
        """Write a policy with sharded weights, as `save` does, from the checkpoint `source` that it was read from.

        Every process must call it. With `write=False` a process only contributes its shards. Each process holds a
        shard of another at a time. Only the weights of models that do not fit `source` (`has_layout_of`) are all
        gathered before they are written.
        """
        if has_layout_of(self.model, source):
            if write:
                self.model.config.save_pretrained(folder)
                if self.model.can_generate():
                    self.model.generation_config.save_pretrained(folder)
            write_weights(self.model, source, folder, write=write)
        else:
            weights = _whole_weights(self.model)
            if write:
                self.model.save_pretrained(folder, state_dict=weights, safe_serialization=True)
        if write:
            self._save_inputs(folder)

    def _save_inputs(self, folder: Path) -> None:
        rendering_tokenizer(self.tokenizer).save_pretrained(folder)
        for name, content in getattr(self.model, "processor_files", {}).items():
            (folder / name).write_bytes(content)


def _whole_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Weights of a model by name, gathered from all processes. Of a sharded base with adapters only the adapters."""
    weights = model.state_dict(keep_vars=True)
    if has_adapters(model) and is_sharded_model(model):
        weights = {name: tensor for name, tensor in weights.items() if tensor.requires_grad}
    whole = {id(tensor): gather_full(tensor.detach()) for tensor in weights.values()}  # tied weights are one tensor
    return {name: whole[id(tensor)] for name, tensor in weights.items()}


def weights_hash(model: PreTrainedModel) -> str:
    """Digest of names, shapes and bytes of all weights, 16 hex digits: the policy version."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        for part in parts(tensor):
            digest.update(part.cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def check_hash(policy: TransformersPolicy, expected: str, folder: Path) -> None:
    """Raise `PolicyError` if the policy that was loaded from a folder has another hash than expected."""
    if policy.hash != expected:
        raise PolicyError(
            f"{folder} holds policy {policy.hash}, expected {expected}: its files were changed. Run the stage that "
            "wrote them again"
        )


@torch.inference_mode(False)  # weights that are loaded in inference mode cannot be trained
def load(
    folder: Path,
    *,
    chat_template: str | None = None,
    base: Path | None = None,
    quantization: Quantization | None = None,
    frozen: Dtype = "float32",
    device: str | None = None,
) -> TransformersPolicy:
    """Load a policy from a folder with config.json, *.safetensors and tokenizer files, in float32.

    If the folder holds adapters, it needs the folder of their `base`, and holds its weights in the dtype `frozen`. The
    model is placed on `device`, by default on the GPU if there is one.

    Raises `PolicyError` if a folder or file is missing, if weights are pickled or do not fit config.json, or if this
    machine does not support the quantization, and `CapacityError` if the model does not fit into memory.
    """
    if (check_model_files(folder) / ADAPTERS).is_file():
        return _load_adapters(
            folder,
            base,
            lambda base: load(base, quantization=quantization, device=device).model,
            chat_template=chat_template,
            frozen=frozen,
        )
    check_architecture(folder)
    model = _read(folder, _model_class, quantization=quantization)
    if not getattr(model, "is_quantized", False):  # quantized models are placed during loading
        model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        _align(model)
    return TransformersPolicy(model, load_tokenizer(folder, chat_template=chat_template))


def load_sharded(
    folder: Path,
    *,
    path_check: PathCheck,
    shard: Callable[[PreTrainedModel], None],
    base: Path | None = None,
    frozen: Dtype = "float32",
) -> TransformersPolicy:
    """Load this process's part of a checkpoint in float32. Every process must call it.

    `shard` is called on the model before it has memory for its weights. Its forward path is the one of `path_check`,
    because a comparison would need all weights. If the folder holds adapters, it needs the folder of their `base`, see
    `load`. Each process reads its part of the base, and all adapters. Raises `PolicyError` as `load` does.
    """
    if (check_model_files(folder) / ADAPTERS).is_file():
        return _load_adapters(
            folder, base, lambda base: _read_sharded(base, shard), frozen=frozen, path_check=path_check
        )
    return TransformersPolicy(_read_sharded(folder, shard), load_tokenizer(folder), path_check=path_check)


def _read_sharded(folder: Path, shard: Callable[[PreTrainedModel], None]) -> PreTrainedModel:
    """Read this process's part of a model, see `load_sharded`."""
    from torch import distributed

    check_architecture(check_model_files(folder))

    def loading(config: PretrainedConfig) -> Any:
        with torch.device("meta"):
            empty = _model_class(config).from_config(config, trust_remote_code=False)
        return sharded_class(type(empty), shard)

    return _read(folder, loading, distributed_config=DistributedConfig(fsdp_size=distributed.get_world_size()))


def _model_class(config: PretrainedConfig) -> Any:
    """Class of transformers that loads models of a config."""
    return auto_class(config.model_type, config.architectures)


def _read(
    folder: Path,
    loading: Callable[[PretrainedConfig], Any],
    *,
    quantization: Quantization | None = None,
    distributed_config: DistributedConfig | None = None,
) -> PreTrainedModel:
    """Read a model in float32, with the class that `loading` returns for its config. See `load` for the errors."""
    bitsandbytes = bitsandbytes_config(quantization) if quantization is not None else None
    published = None
    try:
        config = _config(folder)
        published = published_quantization(folder)
        if published is not None and bitsandbytes is not None:
            raise PolicyError(
                f"policy.quantization {quantization}: weights in {folder} are quantized already. Leave it out"
            )
        model, report = loading(config).from_pretrained(
            str(folder),
            config=config,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # they are in the report
            quantization_config=bitsandbytes or published,
            distributed_config=distributed_config,
        )
    except PolicyError:
        raise
    except Exception as error:  # the config of another user can fail in any way
        if is_out_of_memory(error):
            raise CapacityError(f"the model in {folder} does not fit into memory. Choose a smaller one") from error
        remedy = (
            "Set policy.model to its unquantized release" if published else "Correct its config.json, or fetch it again"
        )
        raise PolicyError(f"cannot load the model in {folder}: {first_line(error)}. {remedy}") from error
    report["unexpected_keys"] = [name for name in report["unexpected_keys"] if not OTHER_TOWER.search(name)]
    mismatches = {key: sorted(map(str, names))[:3] for key, names in report.items() if names and "keys" in key}
    if mismatches:
        raise PolicyError(
            f"weights in {folder} do not fit {config.architectures}: {mismatches}. Save weights and "
            "config.json together"
        )
    if published is not None:
        model._weight_conversions = None  # the format's conversions would quantize the weights when they are saved
        for parameter in model.parameters():  # weights that were not quantized are read in their own dtype
            parameter.data = parameter.data.float()
    model.processor_files = processor_files(folder)
    return cast("PreTrainedModel", model)


def _config(folder: Path) -> PretrainedConfig:
    """Config of a folder. The quantization entry is removed if the weights are not quantized."""
    config: PretrainedConfig = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    if quantization_of(folder) is None:
        for part in (config, config.get_text_config()):
            vars(part).pop("quantization_config", None)
    return config


def _check_embeddings(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer with tokens that the model does not embed, except added tokens that the template lacks."""
    rows = int(model.get_input_embeddings().weight.shape[0])
    used = f"{tokenizer.chat_template} {tokenizer.eos_token}"
    beyond = [token for token, index in tokenizer.get_added_vocab().items() if index >= rows and token in used]
    if beyond or tokenizer.vocab_size > rows:
        many = tokenizer.vocab_size > rows
        count = f"{tokenizer.vocab_size:,} tokens, and not" if many else f"{beyond[0]!r} beyond"
        raise PolicyError(
            f"tokenizer of {tokenizer.name_or_path!r} has {count} the {rows:,} that the model embeds. Call "
            "resize_token_embeddings before training, and save model and tokenizer together"
        )


def _align(model: PreTrainedModel) -> None:
    """Copy weights that are views of a mapped file, at multiples of 8 bytes, into separate memory.

    Weights that were trained in this process are at multiples of 64 bytes. The product of one row with a matrix differs
    by some 1e-6 if the alignment differs. Without the copy a rollout would change if its policy was loaded instead of
    trained here.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % _ALIGNMENT:
            tensor.data = tensor.data.clone()


def _load_adapters(
    folder: Path,
    base: Path | None,
    read: Callable[[Path], PreTrainedModel],
    *,
    frozen: Dtype,
    chat_template: str | None = None,
    path_check: PathCheck | None = None,
) -> TransformersPolicy:
    """Load the adapters in a folder onto their base, which `read` returns."""
    if base is None:
        raise PolicyError(f"{folder} holds adapters only. Give the folder of the model that they are for")
    model = read(base)
    load_adapters(model, folder)
    cast_frozen(model, frozen)
    tokenizer = load_tokenizer(tokenizer_folder(folder, base), chat_template=chat_template)
    return TransformersPolicy(model, tokenizer, path_check=path_check)
