"""Conversion of GGUF, the format of llama.cpp, into a model folder that can be trained.

SmolLM2-135M-Instruct.Q4_1.gguf   →   config.json  model.safetensors  tokenizer.json  chat_template.jinja
                                      generation_config.json

transformers reads the file, and quantized weights become the float32 numbers that they stand for. If transformers would
drop settings or tensors of a file, the file is refused, because the model would compute something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.utils.logging import disable_progress_bar

from grpo.errors import PolicyError
from grpo.storage.files import storage_errors

if TYPE_CHECKING:
    from gguf import GGUFReader

disable_progress_bar()

_READ_FROM_SHAPES = frozenset(
    {
        *("attention.key_length", "attention.value_length", "vocab_size", "tensor_data_layout", "attention.causal"),
        *("expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_shared_count", "expert_count"),
    }
)
"""Settings that the shapes of the tensors repeat, or that every causal language model shares."""
_ROTATED = "rope.dimension_count"
_COMPARED = {"attention.sliding_window": "sliding_window", "attention.layer_norm_rms_epsilon": "rms_norm_eps"}
"""Settings that transformers takes from the family's defaults under another name. The file's must equal them."""
_REMEDY = "Set policy.model to the safetensors weights that the file was converted from"
_LONGEST_REASON = 300
_UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RuntimeError, StrictDataclassError),
)
"""Exceptions of transformers and gguf if a file is cut off, changed, or of a family that they do not read."""


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the model in a GGUF file as a folder with float32 safetensors, tokenizer and generation_config.json.

    It takes half a minute for 135 M parameters, and the memory of their float32 weights. Raises `PolicyError` if the
    file is damaged, or if transformers does not read its family from GGUF or would drop some of its contents, and
    `StorageError` if the folder cannot be written.
    """
    describe_gguf(file, folder)
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    with _readable(file), torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    _check_tensors(file, plain)
    with _readable(file), redirect_stderr(StringIO()):  # its progress bars
        model, report = AutoModelForCausalLM.from_pretrained(
            str(file.parent),
            gguf_file=file.name,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    mismatches = {key: sorted(map(str, names))[:3] for key, names in report.items() if names and "keys" in key}
    if mismatches:
        raise PolicyError(f"the tensors of {file} do not fit {type(model).__name__}: {mismatches}. {_REMEDY}")
    plain.load_state_dict(model.state_dict(), assign=True)  # transformers does not save one that was quantized
    plain.tie_weights()
    plain.generation_config = GenerationConfig.from_pretrained(str(folder), local_files_only=True)
    with storage_errors(str(folder)):
        plain.save_pretrained(folder)


def describe_gguf(file: Path, folder: Path) -> None:
    """Write config.json, tokenizer, chat template and generation_config.json of a GGUF file, without the weights.

    Raises as `convert_gguf`.
    """
    from gguf import GGUFReader

    with _readable(file):
        reader = GGUFReader(file)
        config = AutoConfig.from_pretrained(str(file.parent), gguf_file=file.name, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name, local_files_only=True)
        architecture = str(reader.get_field("general.architecture").contents())  # type: ignore[union-attr]
    if config.num_hidden_layers > len(reader.tensors):
        raise PolicyError(
            f"{file} names {config.num_hidden_layers:,} layers and holds {len(reader.tensors)} tensors. Fetch it again"
        )
    _check_settings(file, reader, architecture, config)
    vars(config).pop("_model_name_or_path", None)  # the title in the file
    generation = GenerationConfig.from_model_config(config)
    generation.eos_token_id = _stop_tokens(reader, tokenizer)
    with storage_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        generation.save_pretrained(folder)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn the exceptions of transformers and gguf into a `PolicyError` that names the file."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, _UNREADABLE) and type(error) is not Exception:  # tokenizers raises that one
            raise
        reason = " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
        raise PolicyError(
            f"{file} cannot be read as GGUF: {reason}. Fetch it again. If it cannot be read then either: {_REMEDY}"
        ) from error


def _check_settings(file: Path, reader: GGUFReader, architecture: str, config: Any) -> None:
    """Refuse a file if transformers does not take over a setting of its forward pass."""
    mapped = GGUF_CONFIG_MAPPING.get(config.model_type.removesuffix("_text"), {})
    dropped = []
    for key, field in reader.fields.items():
        name = key.removeprefix(f"{architecture}.")
        if name == key or name in _READ_FROM_SHAPES or (name in mapped and name != _ROTATED):
            continue
        value = field.contents()
        if name.startswith("rope.scaling.") and (value == "none" or architecture == "gpt-oss"):
            continue
        if value != (_rotary_dim(config) if name == _ROTATED else getattr(config, _COMPARED.get(name, name), None)):
            dropped.append(f"{key} = {value}")
    if dropped:
        raise PolicyError(f"{file}: transformers does not read {', '.join(dropped)} from GGUF. {_REMEDY}")


def _rotary_dim(config: Any) -> int:
    """Rotary dimensions of a head."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    share = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor", 1.0)
    return int(head * share)


def _check_tensors(file: Path, model: PreTrainedModel) -> None:
    """Refuse a file, before it takes memory, if its count of numbers does not fit the model of its settings."""
    from gguf import GGUFReader

    tensors = GGUFReader(file).tensors
    stored = sum(int(tensor.n_elements) for tensor in tensors)
    read = sum(parameter.numel() for parameter in model.parameters())
    if stored != read:
        extra = [tensor.name for tensor in tensors if tensor.name.startswith("rope_")]
        raise PolicyError(
            f"{file} holds {stored:,} numbers, and {type(model).__name__} has {read:,}: transformers does not read "
            f"{', '.join(extra) or 'some of its tensors'}. {_REMEDY}"
        )


def _stop_tokens(reader: GGUFReader, tokenizer: Any) -> int | list[int] | None:
    """Ids that end a turn: the end of the text, and the end of a turn if the file names a different one."""
    ids = [tokenizer.eos_token_id]
    for name in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"):
        if (field := reader.get_field(name)) is not None:
            ids.append(int(field.contents()))
    distinct = list(dict.fromkeys(token for token in ids if token is not None))
    return distinct[0] if len(distinct) == 1 else distinct or None
