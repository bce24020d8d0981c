from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from grpo.errors import PolicyError
from grpo.policy.transformers.model import ModelCache, load, weights_hash


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine may well be able to")
def test_a_quantization_that_the_machine_cannot_do_is_refused(folder: Path):
    """Without a GPU, before anything is loaded."""
    with pytest.raises(PolicyError, match=r"policy\.quantization nf4 computes on an NVIDIA GPU"):
        load(folder, quantization="nf4")


def test_the_hash_names_the_weights(folder: Path):
    """Loaded twice it is the same; one changed number makes another policy."""
    policy = load(folder)
    assert load(folder).hash == policy.hash
    with torch.no_grad():
        next(policy.model.parameters())[0, 0] += 1e-6
    assert weights_hash(policy.model) != policy.hash


def test_saving_and_loading_keeps_every_bit(folder: Path, tmp_path: Path):
    """A policy is the same policy after a trip to disk."""
    policy = load(folder)
    policy.save(tmp_path / "copy")
    assert load(tmp_path / "copy").hash == policy.hash


def test_a_missing_model_is_named(tmp_path: Path):
    """The error says which setting to change."""
    with pytest.raises(PolicyError, match=r"there is no such folder; set policy\.model"):
        load(tmp_path / "nowhere")


def test_pickled_weights_are_refused(folder: Path):
    """A pickle can run code when it is read."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(PolicyError, match="pickled weights are refused"):
        load(folder)


def test_weights_of_another_architecture_are_refused(folder: Path):
    """A third layer in the config that the file does not have is no small matter."""
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match=r"weights in .* are not those of"):
        load(folder)


def test_truncated_weights_are_refused(folder: Path):
    """Half a safetensors file is not a model."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(PolicyError, match="cannot load the model"):
        load(folder)


def test_the_next_stage_finds_the_policy_in_memory(folder: Path, tmp_path: Path):
    """By its hash, without reading any file."""
    model_cache, policy = ModelCache(), load(folder)
    model_cache.put(policy)
    assert model_cache.get(policy.hash, tmp_path / "not there") is policy


def test_a_folder_that_holds_another_policy_is_refused(folder: Path):
    """What is loaded must be what was asked for."""
    with pytest.raises(PolicyError, match="expected 0000"):
        ModelCache().get("0000", folder)


def test_memory_holds_only_the_newest_policies(folder: Path):
    """With room for one, the second pushes the first out."""
    model_cache, first = ModelCache(limit=1), load(folder)
    model_cache.put(first)
    second = load(folder)
    second.hash = "other"
    model_cache.put(second)
    assert model_cache.get(first.hash, folder) is not first
