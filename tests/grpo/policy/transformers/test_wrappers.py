"""Models for text and other inputs: loaded whole, trained on text, saved as what they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo.config.training import LoraSettings, TrainingSettings
from grpo.errors import PolicyError
from grpo.learner.estimates.empty_model import empty_model
from grpo.learner.learner import Learner
from grpo.policy.tokenizer import load_tokenizer
from grpo.policy.transformers.adapters import add_adapters, merge_adapters
from grpo.policy.transformers.model import load
from grpo.policy.transformers.wrappers import other_towers
from tests.models import survey
from tests.models.families import tiny_model

FAMILIES = {
    "mistral3": "Mistral3ForConditionalGeneration",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "llava": "LlavaForConditionalGeneration",
    "gemma3": "Gemma3ForConditionalGeneration",
    "llama4": "Llama4ForConditionalGeneration",
}
IMAGES = "preprocessor_config.json"


def _published(family: str, folder: Path) -> Path:
    """Folder of a wrapper as its makers publish it, with the files of its processor."""
    name = family if family == "gemma3" else f"{family} (whole)"
    tiny_model(name).save_pretrained(folder)
    survey.tokenizer().save_pretrained(folder)
    (folder / IMAGES).write_text('{"image_processor_type": "PixtralImageProcessor"}')
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrapper_is_trained_on_text_and_saved_as_what_it_was(family: str, tmp_path: Path):
    """Its architecture and the names of its weights stay, the towers to the bit; the text model has moved."""
    folder = _published(family, tmp_path / "published")
    policy = load(folder)
    samples = survey.to_samples(survey.rollout(policy, concurrency=2))
    learner = survey.step(policy, samples)
    trained = {id(parameter) for parameter in learner.parameters}
    policy.save(tmp_path / "saved")
    before, after = (json.loads((place / "config.json").read_text()) for place in (folder, tmp_path / "saved"))
    assert after["architectures"] == before["architectures"] == [FAMILIES[family]]
    old, new = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "saved"))
    assert old.keys() == new.keys()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed
    assert not [name for name in changed if "vision" in name or "visual" in name or "projector" in name]
    towers = other_towers(policy.model)
    assert towers
    for name, parameter in policy.model.named_parameters():
        assert (id(parameter) in trained) == (not name.startswith(tuple(f"{tower}." for tower in towers)))
    assert (tmp_path / "saved" / IMAGES).read_bytes() == (folder / IMAGES).read_bytes()
    assert load(tmp_path / "saved").hash == policy.hash


def test_the_text_class_of_a_wrapper_is_loaded_where_the_config_names_it(tmp_path: Path):
    """Llama 4 saved as a language model: its config has no other towers, and none are made."""
    policy = load(_published("llama4", tmp_path))
    assert policy.model.num_parameters() > load(_text(tmp_path / "text")).model.num_parameters()


def _text(folder: Path) -> Path:
    tiny_model("llama4").save_pretrained(folder)
    survey.tokenizer().save_pretrained(folder)
    return folder


def test_adapters_are_on_the_text_model_alone(tmp_path: Path):
    """`all-linear` leaves the tower and its projector out, in the plan of a run too; merged, the model is whole."""
    folder = _published("mistral3", tmp_path / "published")
    settings = TrainingSettings(lora=LoraSettings(r=2, target_modules="all-linear"))
    planned = empty_model(folder, settings)
    policy = load(folder)
    assert settings.lora is not None
    add_adapters(policy.model, settings.lora, seed=0)
    names = [name for name, parameter in policy.model.named_parameters() if parameter.requires_grad]
    assert names == [name for name, parameter in planned.named_parameters() if parameter.requires_grad]
    assert all("language_model" in name and "lora_" in name for name in names)
    assert set(merge_adapters(policy.model).state_dict()) == set(load(folder).model.state_dict())


def test_the_template_of_an_earlier_processor_is_read(tmp_path: Path):
    """LLaVA and Qwen2-VL keep it in chat_template.json; a tokenizer's own template comes first."""
    folder = _published("llava", tmp_path)
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text('{"chat_template": "{{ messages }}"}')
    assert load_tokenizer(folder).chat_template == "{{ messages }}"
    shutil.copy(folder / "chat_template.json", folder / "chat_template.jinja")
    assert load_tokenizer(folder).chat_template != "{{ messages }}"


def test_a_wrapper_that_lacks_a_tower_is_refused(tmp_path: Path):
    """Its file was written by a run that saved the text model under the wrapper's config."""
    folder = _published("llava", tmp_path)
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "vision" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PolicyError, match=r"do not fit \['LlavaForConditionalGeneration'\]: .*missing_keys"):
        load(folder)


def test_the_memory_of_a_wrapper_counts_its_towers_once(tmp_path: Path):
    """They have weights, and neither a gradient nor moments."""
    folder = _published("mistral3", tmp_path)
    model = empty_model(folder, TrainingSettings())
    learner = Learner(load(folder).model, TrainingSettings())
    assert sum(tensor.numel() for tensor in model.parameters() if tensor.requires_grad) == sum(
        tensor.numel() for tensor in learner.parameters
    )
