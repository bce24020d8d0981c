"""Validation of model folders, with a remedy for everything else that a path may name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo.errors import PolicyError

CONFIG, ADAPTERS, ADAPTER_WEIGHTS = "config.json", "adapter_config.json", "adapter_model.safetensors"
_REMEDY = "set policy.model to a folder with config.json, *.safetensors and a tokenizer"


def check_model_files(folder: Path) -> Path:
    """Return a folder with config.json and safetensors, or with adapters.

    Raises `PolicyError` that names what it is instead: a file, pickled weights, adapters that are not LoRA's.
    """
    if not _exists(folder.is_dir):
        raise PolicyError(_not_a_folder(folder))
    if (folder / ADAPTERS).is_file():
        return _check_adapters(folder)
    if not (folder / CONFIG).is_file():
        raise PolicyError(f"no model in {folder}: config.json is missing; {_REMEDY}")
    read_object(folder / CONFIG)
    if not any(folder.glob("*.safetensors")):
        raise PolicyError(f"no *.safetensors in {folder}; pickled weights are refused: convert them to safetensors")
    return folder


def tokenizer_folder(folder: Path, base: Path) -> Path:
    """Folder with the tokenizer of adapters: their own, where it has one, or that of their base."""
    return folder if (folder / "tokenizer_config.json").is_file() else base


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object of a model folder; `PolicyError` for anything else."""
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{file} is not JSON: {error}; fetch the model again") from error
    if not isinstance(document, dict):
        raise PolicyError(f"{file} holds {type(document).__name__}, not an object; fetch the model again")
    return document


def _check_adapters(folder: Path) -> Path:
    kind = read_object(folder / ADAPTERS).get("peft_type")
    if kind != "LORA":
        raise PolicyError(f"{folder} holds adapters of the kind {kind!r}, only LORA is read; {_REMEDY}")
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise PolicyError(
            f"no {ADAPTER_WEIGHTS} in {folder}; pickled adapters are refused: convert them to safetensors"
        )
    return folder


def _not_a_folder(folder: Path) -> str:
    """Error message for a path that is not a folder."""
    name = str(folder)
    if _exists(folder.is_file):
        return f"no model at {name}: it is a file; {_REMEDY}"
    return f"no model in {name}: the folder does not exist; {_REMEDY}, or to a model on the hub as org/name"


def _exists(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except OSError:  # not a valid file name
        return False
