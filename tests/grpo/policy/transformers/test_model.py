from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from grpo.errors import PolicyError
from grpo.policy.transformers.model import ModelCache, load, load_tokenizer, weights_hash


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU may support it")
def test_an_unsupported_quantization_is_refused(folder: Path):
    """Without a GPU, before the model is loaded."""
    with pytest.raises(PolicyError, match=r"policy\.quantization nf4 computes on an NVIDIA GPU"):
        load(folder, quantization="nf4")


def test_the_hash_depends_on_the_weights(folder: Path):
    """The same after loading again; one changed number gives another hash."""
    policy = load(folder)
    assert load(folder).hash == policy.hash
    with torch.no_grad():
        next(policy.model.parameters())[0, 0] += 1e-6
    assert weights_hash(policy.model) != policy.hash


def test_saving_and_loading_keeps_every_bit(folder: Path, tmp_path: Path):
    """The loaded policy has the same hash."""
    policy = load(folder)
    policy.save(tmp_path / "copy")
    assert load(tmp_path / "copy").hash == policy.hash


def test_a_missing_model_is_refused(tmp_path: Path):
    """The message names the setting."""
    with pytest.raises(PolicyError, match=r"the folder does not exist; set policy\.model"):
        load(tmp_path / "nowhere")


def test_pickled_weights_are_refused(folder: Path):
    """Loading a pickle may run code."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(PolicyError, match="pickled weights are refused"):
        load(folder)


def test_weights_of_another_architecture_are_refused(folder: Path):
    """A third layer in the config is missing from the file."""
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match=r"weights in .* are not those of"):
        load(folder)


def test_truncated_weights_are_refused(folder: Path):
    """A safetensors file without its last 100 bytes."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(PolicyError, match="cannot load the model"):
        load(folder)


def test_the_model_cache_returns_a_policy_by_its_hash(folder: Path, tmp_path: Path):
    """Without reading a file."""
    model_cache, policy = ModelCache(), load(folder)
    model_cache.put(policy)
    assert model_cache.get(policy.hash, tmp_path / "not there") is policy


def test_a_folder_with_another_hash_is_refused(folder: Path):
    """Loaded weights must have the requested hash."""
    with pytest.raises(PolicyError, match="expected 0000"):
        ModelCache().get("0000", folder)


def test_the_model_cache_evicts_the_least_recently_used_policy(folder: Path):
    """With a limit of 1 the second evicts the first."""
    model_cache, first = ModelCache(limit=1), load(folder)
    model_cache.put(first)
    second = load(folder)
    second.hash = "other"
    model_cache.put(second)
    assert model_cache.get(first.hash, folder) is not first


def test_a_folder_without_a_tokenizer_is_refused_on_one_line(tiny_folder: Path, tmp_path: Path):
    """The first line of the library's four, with the folder and the remedy."""
    for file in tiny_folder.iterdir():
        if not file.name.startswith("token"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(PolicyError) as raised:
        load_tokenizer(tmp_path)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(f"no tokenizer in {tmp_path}: ")
    assert str(raised.value).endswith("; add tokenizer.json")
