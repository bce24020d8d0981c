"""Validation of model folders, with a remedy for everything else that a path may name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from grpo.errors import PolicyError

CONFIG, ADAPTERS = "config.json", "adapter_config.json"
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
_REMEDY = "set policy.model to a folder with config.json, *.safetensors and a tokenizer"


def check_model_files(folder: Path) -> Path:
    """Return a folder with config.json and safetensors, or with adapters.

    Raises `PolicyError` that names what it is instead: a hub id, a GGUF or another file, pickled weights.
    """
    is_folder = _exists(folder.is_dir)
    if folder.suffix == ".gguf" or (is_folder and not (folder / CONFIG).exists() and any(folder.glob("*.gguf"))):
        raise PolicyError(
            f"{folder} is GGUF, weights for llama.cpp, which cannot be trained; {_REMEDY}: those of the model that it "
            "was converted from"
        )
    if not is_folder:
        raise PolicyError(_not_a_folder(folder))
    if (folder / ADAPTERS).is_file():
        return folder
    if not (folder / CONFIG).is_file():
        raise PolicyError(f"no model in {folder}: config.json is missing; {_REMEDY}")
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{folder / CONFIG} is not JSON: {error}; fetch the model again") from error
    if not isinstance(config, dict):
        raise PolicyError(f"{folder / CONFIG} holds {type(config).__name__}, not an object; fetch the model again")
    if not any(folder.glob("*.safetensors")):
        raise PolicyError(f"no *.safetensors in {folder}; pickled weights are refused: convert them to safetensors")
    return folder


def _not_a_folder(folder: Path) -> str:
    """Error message for a path that is not a folder."""
    name = str(folder)
    if _exists(folder.is_file):
        return f"no model at {name}: it is a file; {_REMEDY}"
    if _HUB_ID.match(name):
        return (
            f"no folder {name}. If it is a model on the Hugging Face hub: nothing is fetched here; on a machine that "
            f"reaches the hub, hf download {name} --local-dir models/{folder.name}, and set policy.model to that folder"
        )
    return f"no model in {name}: the folder does not exist; {_REMEDY}"


def _exists(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except OSError:  # not a valid file name
        return False
