"""Validation of model folders. If a path names something else, the error gives the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from grpo.errors import PolicyError

CONFIG, ADAPTERS, ADAPTER_WEIGHTS = "config.json", "adapter_config.json", "adapter_model.safetensors"
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
CHAT_TEMPLATE = "chat_template.json"
"""File in which processors of earlier releases keep the chat template, e.g. LLaVA and Qwen2-VL."""
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""Files that describe inputs of a model other than text."""
DEQUANTIZED = ("mxfp4", "fp8")
"""Formats of published checkpoints that are dequantized when they are read, e.g. gpt-oss and Qwen3-FP8."""
_PLAIN = {"F64", "F32", "F16", "BF16", "I64", "BOOL"}
"""Types of tensors in files without quantized weights. Integers are included because of positions and masks."""
_REMEDY = "Set policy.model to a folder with config.json, *.safetensors and a tokenizer"


def check_model_files(folder: Path) -> Path:
    """Return the folder if it has config.json and safetensors, or adapters.

    Otherwise raises `PolicyError`, which names what it is instead: a file, pickled, damaged, incomplete or quantized
    weights, or adapters of another kind than LoRA.
    """
    if not _exists(folder.is_dir):
        raise PolicyError(_not_a_folder(folder))
    if (folder / ADAPTERS).is_file():
        return _check_adapters(folder)
    if not (folder / CONFIG).is_file():
        raise PolicyError(f"no model in {folder}: config.json is missing. {_REMEDY}")
    check_quantization(folder)
    for name in weight_files(folder):
        _check_safetensors(folder / name)
    return folder


def tokenizer_folder(folder: Path, base: Path) -> Path:
    """Folder with the tokenizer of adapters: their own folder if it has one, or else their base's."""
    return folder if (folder / "tokenizer_config.json").is_file() else base


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object in a model folder. Raises `PolicyError` if the file holds anything else."""
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{file} is not JSON: {error}. Fetch the model again") from error
    if not isinstance(document, dict):
        raise PolicyError(f"{file} holds {type(document).__name__}, not an object. Fetch the model again")
    return document


def first_line(error: Exception) -> str:
    """First line of a library's error about a model, with the error's class if the text explains little by itself."""
    if "CONVERSION" in str(error):
        return "transformers cannot dequantize its weights, because their sizes are not multiples of their blocks"
    lines = str(error).strip().splitlines()
    text = lines[0].strip()[:300] if lines else ""
    return text if isinstance(error, (OSError, ValueError)) and text else f"{type(error).__name__}: {text}".rstrip(": ")


def check_architecture(folder: Path) -> None:
    """Refuse a model, before its weights are read, if transformers cannot build its type as a causal language model.

    Imports PyTorch.
    """
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING

    config = read_object(folder / CONFIG)
    kind = config.get("model_type")
    is_known = isinstance(kind, str) and kind in CONFIG_MAPPING
    if is_known and any(
        CONFIG_MAPPING[kind] in mapping for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING)
    ):
        return
    version = f"transformers {transformers.__version__}"
    if config.get("auto_map"):
        reason = "its code comes with the weights (auto_map), and is not run"
    elif is_known:
        reason = f"{version} has no causal language model of it"
    else:
        reason = f"{version} does not know this type"
    raise PolicyError(
        f"config.json in {folder} is of the type {kind!r}, which is refused because {reason}. Set policy.model to a "
        "causal language model that transformers loads by itself"
    )


def check_quantization(folder: Path) -> None:
    """Refuse quantized weights, except in the formats `DEQUANTIZED`."""
    quantization = quantization_of(folder)
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if quantization and method not in DEQUANTIZED:
        raise PolicyError(
            f"weights in {folder} are quantized ({method}), which cannot be trained. Set policy.model to the model's "
            f"unquantized release, or to one in {' or '.join(DEQUANTIZED)}"
        )


def quantization_of(folder: Path) -> Any:
    """`quantization_config` of a folder's model or of its text model, or None if the weights are plain numbers.

    The weights are checked, because tools that convert weights to floats leave the entry in config.json. If the config
    was fetched without weights, its entry counts.
    """
    config = read_object(folder / CONFIG)
    text = config.get("text_config")
    quantization = config.get("quantization_config") or (text if isinstance(text, dict) else {}).get(
        "quantization_config"
    )
    return None if not quantization or _is_plain(folder) else quantization


def _is_plain(folder: Path) -> bool:
    """True if a folder has its weights and all their types hold plain numbers. Reads only the headers."""
    try:
        for name in weight_files(folder):
            with safe_open(folder / name, framework="numpy") as tensors:
                if any(tensors.get_slice(key).get_dtype() not in _PLAIN for key in tensors.keys()):  # noqa: SIM118
                    return False
    except (PolicyError, SafetensorError, OSError):
        return False
    return True


def weight_files(folder: Path) -> list[str]:
    """Names of the files with the weights of a folder. Raises `PolicyError` if one of them is missing."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file():
        names = {WEIGHTS}
    elif index.is_file():
        shards = read_object(index).get("weight_map")
        if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
            raise PolicyError(f"{index} is not an index of weights. Fetch the model again")
        names = set(shards.values())
        missing = sorted(name for name in names if not (folder / name).is_file())
        if missing:
            raise PolicyError(f"{folder} lacks {', '.join(missing[:3])}, which {INDEX} names. Fetch the model again")
    else:
        raise PolicyError(
            f"no {WEIGHTS} and no {INDEX} in {folder}. Pickled weights are refused, because they can run code: convert "
            "them to safetensors"
        )
    return sorted(names)


def _check_safetensors(file: Path) -> None:
    """Raise `PolicyError` if a file has no header, or is shorter than the header says."""
    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise PolicyError(f"{file} is damaged: {error}. Fetch or save it again") from error


def _check_adapters(folder: Path) -> Path:
    kind = read_object(folder / ADAPTERS).get("peft_type")
    if kind != "LORA":
        raise PolicyError(f"{folder} holds adapters of the kind {kind!r}, only LORA is read. {_REMEDY}")
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise PolicyError(
            f"no {ADAPTER_WEIGHTS} in {folder}. Pickled adapters are refused, because they can run code: convert them "
            "to safetensors"
        )
    _check_safetensors(folder / ADAPTER_WEIGHTS)
    return folder


def _not_a_folder(folder: Path) -> str:
    """Error message for a path that is not a folder."""
    name = str(folder)
    if _exists(folder.is_file):
        return f"no model at {name}: it is a file. {_REMEDY}"
    return f"no model in {name}: the folder does not exist. {_REMEDY}, or to a model on the hub as org/name"


def _exists(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except OSError:  # not a valid file name
        return False
