"""LoRA adapters on a tiny model: their effect, the unchanged base, and merged copies."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from grpo.config.training import LoraSettings
from grpo.errors import ConfigError, PolicyError
from grpo.policy.transformers.adapters import (
    add_adapters,
    has_adapters,
    load_adapters,
    merge_adapters,
    without_adapters,
)
from grpo.policy.transformers.model import load
from tests.models.families import tiny_model

IDS = torch.arange(5, 25)[None]
QUERY = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def model(tiny_folder: Path) -> PreTrainedModel:
    return load(tiny_folder).model


def _logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def _adapted(model: PreTrainedModel, *, seed: int = 0, **settings: object) -> PreTrainedModel:
    add_adapters(model, LoraSettings.model_validate({"r": 2, **settings}), seed=seed)
    return model


def _move(model: PreTrainedModel) -> None:
    """Give every adapter an effect: B is all .05."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.05)


def _names(weights: Path) -> set[str]:
    """Names of the tensors of a file."""
    with safe_open(weights, "pt") as tensors:
        return set(tensors.keys())


def test_untrained_adapters_change_nothing_and_alone_are_trained(model: PreTrainedModel):
    """The same logits; every linear layer but the head has an A of 2 rows and a B of 2 columns, and nothing else."""
    before = _logits(model)
    linear = [name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear) and name != "lm_head"]
    assert not has_adapters(model)
    _adapted(model)
    assert has_adapters(model)
    assert torch.equal(_logits(model), before)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert sorted(trained) == sorted(f"{name}.lora_{matrix}.default.weight" for name in linear for matrix in ("A", "B"))
    assert {parameter.shape[0 if "lora_A" in name else 1] for name, parameter in trained.items()} == {2}


def test_an_adapter_adds_alpha_over_r_times_b_a_x(model: PreTrainedModel):
    """lora_alpha 6 and r 2: three times what A and B make of the input, and the named layer alone has one."""
    x = torch.linspace(-1, 1, 32)[None]
    base = model.get_submodule(QUERY)(x)
    _adapted(model, lora_alpha=6, target_modules=("q_proj",))
    _move(model)
    layer = model.get_submodule(QUERY)
    a = layer.lora_A["default"].weight
    b = layer.lora_B["default"].weight
    assert torch.allclose(layer(x), base + 3 * (x @ a.T @ b.T), atol=1e-6)
    assert not hasattr(model.get_submodule("model.layers.0.self_attn.k_proj"), "lora_A")


def test_adapters_have_no_dropout(model: PreTrainedModel):
    """In training mode the logits are those of evaluation mode, in which the model is returned."""
    _move(_adapted(model.train()))
    assert not model.training
    before = _logits(model)
    assert torch.equal(_logits(model.train()), before)


def test_the_seed_draws_the_adapters_and_nothing_else(tiny_folder: Path):
    """The same A from the same seed, another from another; the caller's RNG state is unchanged."""

    def drawn(seed: int) -> torch.Tensor:
        return _adapted(load(tiny_folder).model, seed=seed).get_submodule(QUERY).lora_A["default"].weight

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    assert torch.equal(drawn(2**64 + 1), drawn(1))  # torch takes no larger one
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    drawn(1)
    assert torch.equal(torch.rand(3), expected)


def test_target_modules_that_no_layer_has_are_named_beside_those_that_there_are(model: PreTrainedModel):
    """Of two names the one that fits nothing; the model stays without adapters."""
    with pytest.raises(ConfigError) as refusal:
        _adapted(model, target_modules=("q_proj", "query"))
    assert str(refusal.value) == (
        "training.lora.target_modules ['query'] fits no layer of LlamaForCausalLM. Its linear layers are "
        "down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj"
    )
    assert not has_adapters(model)


def test_without_adapters_the_model_is_its_base_while_the_block_runs(model: PreTrainedModel):
    """Base logits inside, adapted ones after it, also when the block fails; a model without adapters is itself."""
    before = _logits(model)
    with without_adapters(model) as base:
        assert base is model
    _move(_adapted(model))
    after = _logits(model)
    assert not torch.allclose(after, before, atol=1e-3)
    with without_adapters(model) as base:
        assert base is model
        assert torch.equal(_logits(base), before)
    assert torch.equal(_logits(model), after)
    with pytest.raises(RuntimeError, match="in the block"), without_adapters(model):
        raise RuntimeError("in the block")
    assert torch.equal(_logits(model), after)


@pytest.mark.parametrize("beside", [{"modules_to_save": ["norm"]}, {"trainable_token_indices": [5, 6, 7]}])
def test_what_is_trained_beside_adapters_is_off_with_them_and_on_again(model: PreTrainedModel, beside: dict):
    """The base computes what it computed before, the adapted model what it computed with them."""
    base = _logits(model)
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"], **beside))
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modules_to_save" in name or "trainable_tokens" in name:
                parameter.add_(0.1)
    adapted = _logits(model)
    assert not torch.allclose(adapted, base, atol=1e-3)
    with without_adapters(model):
        assert torch.equal(_logits(model), base)
    assert torch.equal(_logits(model), adapted)


def test_a_merged_copy_is_a_plain_model_with_the_adapted_logits(model: PreTrainedModel, tiny_folder: Path):
    """The names of the base, all of it trainable; the adapted model keeps its adapters; without any it is itself."""
    assert merge_adapters(model) is model
    names = set(model.state_dict())
    _move(_adapted(model))
    expected = _logits(model)
    whole = merge_adapters(model)
    assert whole is not model
    assert not has_adapters(whole)
    assert set(whole.state_dict()) == names
    assert all(parameter.requires_grad for parameter in whole.parameters())
    assert torch.allclose(_logits(whole), expected, atol=1e-5)
    assert has_adapters(model)
    assert torch.equal(_logits(model), expected)
    assert not torch.equal(model.get_submodule(QUERY).weight, whole.get_submodule(QUERY).weight)


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_next"])
def test_threads_pass_through_adapters_of_experts_one_at_a_time(family: str):
    """Shards of a rollout share a model, and peft replaces the experts' parameters during a pass."""
    model = tiny_model(family)
    _move(_adapted(model, target_modules="all-linear"))
    assert any("experts" in name and "lora_B" in name for name, _ in model.named_parameters())
    expected = _logits(model)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: _logits(model), range(40)))
        merged = list(pool.map(lambda turn: _logits(merge_adapters(model) if turn % 4 == 0 else model), range(16)))
    assert all(torch.equal(result, expected) for result in results)
    assert all(torch.allclose(result, expected, atol=1e-4) for result in merged)


def test_towers_of_other_inputs_get_no_adapters():
    """Gemma 3 has one for images, which no text passes through."""
    model = tiny_model("gemma3")
    assert any("vision_tower" in name for name, _ in model.named_modules())
    _adapted(model, target_modules="all-linear")
    adapted = [name for name, _ in model.named_parameters() if "lora_" in name]
    assert adapted
    assert not [name for name in adapted if "vision" in name or "multi_modal" in name]


@pytest.mark.filterwarnings("ignore:.*lora_bias")
def test_adapters_that_peft_does_not_merge_are_refused(model: PreTrainedModel):
    """A bias of an adapter on a layer without one."""
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"], lora_bias=True))
    with pytest.raises(PolicyError, match=r"adapters of LlamaForCausalLM cannot be merged: .*lora_bias"):
        merge_adapters(model)


def test_adapters_of_packed_experts_are_merged():
    """Both tensors of the experts have adapters, one wrapped into the other; merged they are the base's again."""
    model = tiny_model("afmoe")
    names = set(model.state_dict())
    _move(_adapted(model))
    assert any(name.endswith("experts.base_layer.lora_B.default.weight") for name, _ in model.named_parameters())
    merged = merge_adapters(model)
    assert set(merged.state_dict()) == names
    assert torch.allclose(_logits(merged), _logits(model), atol=1e-4)


def test_layers_that_share_their_weights_get_no_adapters():
    """Zamba repeats a block: each use would have adapters of its own, and a merge would add all of them to each."""
    model = tiny_model("zamba")
    with pytest.raises(
        ConfigError, match=r"layers\.2\.shared_transf\.self_attn\.q_proj has the same weights as another"
    ):
        _adapted(model, target_modules=("q_proj",))
    _move(_adapted(model, target_modules="all-linear"))
    adapted = [name for name, _ in model.named_parameters() if "lora_B" in name]
    assert adapted
    assert not any("shared_transf" in name for name in adapted)
    assert torch.allclose(_logits(merge_adapters(model)), _logits(model), atol=1e-4)


@pytest.mark.parametrize(
    ("family", "name"), [("llama4_text", "router"), ("mamba", "out_proj"), ("deepseek_v4", "o_a_proj")]
)
def test_layers_that_cannot_be_adapted_are_left_out(family: str, name: str):
    """Routers that return scores, projections inside of fused kernels, grouped ones; the others are adapted."""
    model = tiny_model(family)
    before = _logits(model)
    adapted = {path.rsplit(".", 3)[0] for path, _ in _adapted(model).named_parameters() if "lora_B" in path}
    assert any(path.endswith(name) for path, _ in model.named_modules())
    assert len(adapted) >= 8
    assert not any(path.endswith(name) for path in adapted)
    assert torch.allclose(_logits(model), before, atol=1e-5)


def test_a_merged_copy_is_written_and_read_as_a_model(model: PreTrainedModel, tiny_folder: Path, tmp_path: Path):
    """Whole weights and no adapter files; read by transformers alone it has the adapted logits."""
    _move(_adapted(model))
    merge_adapters(model).save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"config.json", "model.safetensors"}
    assert not (tmp_path / "adapter_config.json").exists()
    assert torch.allclose(_logits(AutoModelForCausalLM.from_pretrained(tmp_path)), _logits(model), atol=1e-5)


def test_saved_adapters_are_restored(tiny_folder: Path, tmp_path: Path):
    """The same logits and trainable parameters, in evaluation mode; merged and saved the names are the base's."""
    policy = load(tiny_folder)
    model = policy.model
    _move(_adapted(model))
    model.save_pretrained(tmp_path)
    again = load(tiny_folder).model.train()
    load_adapters(again, tmp_path)
    assert not again.training
    assert torch.equal(_logits(again), _logits(model))
    trained = [[name for name, p in one.named_parameters() if p.requires_grad] for one in (again, model)]
    assert trained[0] == trained[1] != []
    merge_adapters(again).save_pretrained(tmp_path / "whole")
    assert _names(tmp_path / "whole" / "model.safetensors") == _names(tiny_folder / "model.safetensors")


def test_adapters_whose_names_transformers_would_rename_are_read_as_they_are(tmp_path: Path):
    """Laguna: a rule for `mlp.shared_expert.` fits its own `mlp.shared_experts.` as well, and would rename it."""
    model = tiny_model("laguna")
    model.save_pretrained(tmp_path / "base")
    _move(_adapted(model))
    model.save_pretrained(tmp_path / "adapters")
    again = type(model).from_pretrained(tmp_path / "base")
    load_adapters(again, tmp_path / "adapters")
    trained, read = model.get_adapter_state_dict(), again.get_adapter_state_dict()
    assert any("shared_experts" in name for name in trained)
    assert trained.keys() == read.keys()
    assert all(torch.equal(trained[name], read[name]) for name in trained)


def test_adapters_of_another_model_are_refused(tiny_folder: Path, tmp_path: Path):
    """Fewer layers, other layers, another width: without a word they would be the untrained model."""
    policy = load(tiny_folder)
    _move(_adapted(policy.model))
    policy.model.save_pretrained(tmp_path / "whole")
    weights = load_file(tmp_path / "whole" / "adapter_model.safetensors")
    first = min(weights)
    changes = {
        "missing": {name: tensor for name, tensor in weights.items() if name != first},
        "other": {name.replace("layers.0.", "layers.7."): tensor for name, tensor in weights.items()},
        "narrow": {**weights, first: weights[first][:, :-1].contiguous()},
    }
    for name, changed in changes.items():
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        save_file(changed, tmp_path / name / "adapter_model.safetensors")
        with pytest.raises(PolicyError, match="adapters in"):
            load_adapters(load(tiny_folder).model, tmp_path / name)


def test_loading_adapters_leaves_the_names_that_weights_are_written_under(tiny_folder: Path, tmp_path: Path):
    """A model that was converted when it was read keeps its own rules for writing it."""
    model = _adapted(load(tiny_folder).model)
    model.save_pretrained(tmp_path)
    again = load(tiny_folder).model
    rules: list[object] = []
    again._weight_conversions = rules
    load_adapters(again, tmp_path)
    assert again._weight_conversions is rules


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize(
    "settings",
    [{"modules_to_save": ["lm_head", "norm"]}, {"trainable_token_indices": [5, 6, 7]}, {"use_dora": True}],
    ids=["whole modules", "tokens", "dora"],
)
def test_what_was_trained_beside_the_adapters_is_merged(model: PreTrainedModel, settings: dict, tmp_path: Path):
    """Whole modules, or the embeddings of some tokens, as peft trains them; a head that was tied is written apart."""
    model.add_adapter(LoraConfig(target_modules=["q_proj"], **settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    merged = merge_adapters(model.eval())
    assert not [name for name, _ in merged.named_parameters() if "lora" in name or "modules_to_save" in name]
    assert torch.allclose(_logits(merged), _logits(model), atol=1e-5)
    merged.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.allclose(_logits(again), _logits(merged), atol=1e-6)


def test_adapters_that_cannot_be_merged_are_refused():
    """Those of an embedding that the head shares: merged, they would change the head as well."""
    model = tiny_model("mamba")
    model.add_adapter(LoraConfig(r=4, target_modules=["embeddings"], init_lora_weights=False))
    with pytest.raises(PolicyError, match=r"on embeddings cannot be merged: the merged weights are off by .* nats"):
        merge_adapters(model.eval())


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"bias": "lora_only"}, "train biases of the base"),
        ({"init_lora_weights": "pissa"}, "relative to a base that their initialization changes"),
        ({"layer_replication": [[0, 1], [0, 1]]}, "repeat layers of the base"),
    ],
)
def test_adapters_that_change_their_base_are_refused(tiny_folder: Path, tmp_path: Path, settings: dict, fault: str):
    """Without them the model would not be the reference that KL is measured against."""
    adapted = _adapted(load(tiny_folder).model)
    adapted.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, **settings}))
    with pytest.raises(PolicyError, match=f"adapters in .* {fault}.*merge_and_unload"):
        load(tmp_path, base=tiny_folder)
