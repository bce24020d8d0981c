"""Sizes, context and tokenizer of plain models against those that transformers makes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoTokenizer

from grpo.config.training import LoraSettings, TrainingSettings
from grpo.learner.estimates.empty_model import empty_model
from grpo.learner.estimates.model_sizes import model_sizes
from grpo.policy.context import describe_context, read_config
from grpo.policy.plain_models import PlainConfig, plain_config, tokenizer_class
from grpo.policy.tokenizer import load_tokenizer
from tests.places import DESK_MODEL

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SIZES = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip


def _folder(folder: Path, kind: str, **changes: Any) -> Path:
    """config.json as transformers writes it, with changes after that."""
    AutoConfig.for_model(kind, architectures=[CLASSES[kind]], **SIZES).save_pretrained(folder)
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | changes))
    return folder


def _built_instead() -> Any:
    raise AssertionError("the model was built, and its sizes follow from its config")


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {}),
        ("qwen3", {"attention_bias": True}),
        ("qwen3", {"tie_word_embeddings": True}),
    ],
)
def test_the_sizes_of_a_plain_model_are_those_that_transformers_builds(
    tmp_path: Path, kind: str, changes: dict[str, Any]
):
    """Each tensor has its weights, and the context is the same."""
    folder = _folder(tmp_path, kind, **changes)
    config = plain_config(folder)
    assert config is not None
    model = empty_model(folder, TrainingSettings())
    assert sorted(config.parameter_sizes()) == sorted(tensor.numel() for tensor in model.parameters())
    sizes = model_sizes(folder, TrainingSettings(), _built_instead)
    assert (sizes.parameters, sizes.trained_tensors) == (model.num_parameters(), len(list(model.parameters())))
    assert describe_context(read_config(folder)) == describe_context(model.config) == "64 tokens"


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gemma"},
        {"hidden_size": "16"},
        {"head_dim": None, "hidden_size": 18},
        {"num_key_value_heads": 3},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
        {"quantization_config": {"quant_method": "fp8"}},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"auto_map": {"AutoModel": "modeling.Model"}},
        {"a_key_of_a_later_release": 1},
    ],
)
def test_what_this_module_does_not_know_is_read_by_transformers(tmp_path: Path, changes: dict[str, Any]):
    """Another family, a value of another type, sizes that do not divide, and each key without a field."""
    assert plain_config(_folder(tmp_path, "llama", **changes)) is None


def test_adapters_and_recomputed_activations_are_counted_on_the_model(tmp_path: Path):
    """Their layers are those that transformers and peft name: r 2 on q_proj of 2 layers, 2 × 2 × (16 + 32) weights."""
    folder = _folder(tmp_path, "llama")
    settings = TrainingSettings(lora=LoraSettings(r=2, target_modules=("q_proj",)))
    sizes = model_sizes(folder, settings, lambda: empty_model(folder, settings))
    assert not isinstance(sizes.config, PlainConfig)
    assert (sizes.trained, sizes.trained_tensors) == (2 * 2 * (16 + 32), 4)
    with pytest.raises(AssertionError, match="was built"):
        model_sizes(folder, TrainingSettings(gradient_checkpointing=True), _built_instead)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("declared", ["TokenizersBackend", "PreTrainedTokenizerFast", "Qwen2Tokenizer"])
def test_a_tokenizer_has_the_class_that_transformers_chooses(tmp_path: Path, kind: str, declared: str):
    """Whether the table of this module or AutoTokenizer names it; the texts of both give the same tokens."""
    folder = _tokenizer(tmp_path, kind, declared)
    chosen = AutoTokenizer.from_pretrained(str(folder))
    tokenizer = load_tokenizer(folder)
    assert type(tokenizer) is type(chosen)
    assert tokenizer.encode("Where is my order W12345?") == chosen.encode("Where is my order W12345?")
    assert tokenizer.chat_template == chosen.chat_template


@pytest.mark.parametrize(("kind", "declared"), [("qwen2", "Qwen2Tokenizer"), ("llama", "TokenizersBackend")])
def test_the_table_knows_the_tokenizers_of_published_models(tmp_path: Path, kind: str, declared: str):
    """Qwen 2.5 and Llama 3; one that names no class, or code of its own, is left to AutoTokenizer."""
    folder = _tokenizer(tmp_path, kind, declared)
    assert tokenizer_class(folder) == type(AutoTokenizer.from_pretrained(str(folder))).__name__
    for changes in ({"tokenizer_class": None}, {"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}):
        own = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(own | changes))
        assert tokenizer_class(folder) is None


def _tokenizer(folder: Path, kind: str, declared: str) -> Path:
    _folder(folder, kind)
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(DESK_MODEL / name, folder)
    own = json.loads((DESK_MODEL / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(own | {"tokenizer_class": declared}))
    return folder
