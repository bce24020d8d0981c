"""Model folders, and the errors for other paths."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from grpo.errors import PolicyError
from grpo.policy.model_files import check_architecture, check_model_files
from tests.places import DESK_MODEL

LLAMA = b'{"model_type": "llama"}'


def test_a_model_folder_is_returned_unchanged():
    """It has a config, weights and a tokenizer."""
    assert check_model_files(DESK_MODEL) == DESK_MODEL


@pytest.mark.parametrize(
    ("files", "named", "reason"),
    [
        ({}, "m/n/o", "the folder does not exist"),
        ({}, "gpt2", "the folder does not exist. .*or to a model on the hub as org/name"),
        ({"m": b""}, "m", "it is a file"),
        ({"m/x": b""}, "m", "config.json is missing"),
        ({"m/config.json": b"{"}, "m", "config.json is not JSON"),
        ({"m/config.json": LLAMA, "m/model.safetensors.index.json": b"{}"}, "m", "is not an index of weights"),
        ({"m/config.json": b"[]"}, "m", "holds list, not an object"),
        ({"m/config.json": LLAMA, "m/pytorch_model.bin": b""}, "m", "Pickled weights are refused"),
        (
            {"m/config.json": LLAMA, "m/model.safetensors": b"{"},
            "m",
            "model.safetensors is damaged: .*. Fetch or save it",
        ),
        (
            {"m/config.json": b'{"model_type": "llama", "quantization_config": {"quant_method": "awq"}}'},
            "m",
            r"are quantized \(awq\), which cannot be trained. .*unquantized release, or to one in mxfp4 or fp8",
        ),
        (
            {
                "m/config.json": LLAMA,
                "m/a.safetensors": b"",
                "m/model.safetensors.index.json": b'{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}',
            },
            "m",
            r"lacks b\.safetensors, which model\.safetensors\.index\.json names\. Fetch the model again",
        ),
        ({"m/adapter_config.json": b"[]"}, "m", "holds list, not an object"),
        ({"m/adapter_config.json": b'{"peft_type": "IA3"}'}, "m", "adapters of the kind 'IA3', only LORA is read"),
        ({"m/adapter_config.json": b'{"peft_type": "LORA"}'}, "m", "Pickled adapters are refused"),
    ],
)
def test_a_folder_without_a_model_is_refused_with_the_reason(
    tmp_path: Path, files: dict[str, bytes], named: str, reason: str
):
    """Each case with its own message and the path."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PolicyError, match=f"{named}.*{reason}"):
        check_model_files(tmp_path / named)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            "{}",
            r"of the type None, which is refused because transformers [\d.]+ does not know this type\. Set policy",
        ),
        ('{"model_type": ["llama"]}', "does not know this type"),
        ('{"model_type": "t5"}', r"transformers [\d.]+ has no causal language model of it"),
        ('{"model_type": "own", "auto_map": {"AutoModel": "m.Own"}}', r"its code comes with the weights \(auto_map\)"),
    ],
)
def test_a_config_that_is_not_that_of_a_causal_language_model_is_refused(tmp_path: Path, config: str, reason: str):
    """Its weights need not be there."""
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(PolicyError, match=reason):
        check_architecture(tmp_path)
    check_architecture(DESK_MODEL)


def test_files_that_are_not_the_models_are_not_read(tmp_path: Path):
    """A shard of an earlier release, and the state of an optimizer."""
    folder = Path(shutil.copytree(DESK_MODEL, tmp_path / "m"))
    for name in ("model-00001-of-00002.safetensors", "optimizer.safetensors"):
        (folder / name).write_bytes(b"{")
    assert check_model_files(folder) == folder


@pytest.mark.parametrize("place", ["quantization_config", "text_config"])
def test_packed_weights_are_told_from_a_leftover_entry(tmp_path: Path, place: str):
    """Integers of four bits in 32 are quantized; halves are not, whatever the config says, of the model or its text."""
    entry = {"quant_method": "gptq"}
    config = {"model_type": "llama", place: entry if place == "quantization_config" else {"quantization_config": entry}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"weight": np.ones(2, dtype=np.float16)}, tmp_path / "model.safetensors")
    assert check_model_files(tmp_path) == tmp_path
    save_file({"qweight": np.ones(2, dtype=np.int32)}, tmp_path / "model.safetensors")
    with pytest.raises(PolicyError, match=r"are quantized \(gptq\), which cannot be trained"):
        check_model_files(tmp_path)


def test_an_invalid_file_name_is_not_a_folder():
    """Longer than the file system allows."""
    with pytest.raises(PolicyError, match="the folder does not exist"):
        check_model_files(Path("x" * 300))
