from __future__ import annotations

import copy
import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from grpo.errors import PolicyError
from grpo.policy.context import context_limit, describe_context
from grpo.policy.transformers.adapters import merge_adapters
from grpo.policy.transformers.model import (
    TransformersPolicy,
    load,
    load_tokenizer,
    weights_hash,
)
from grpo.policy.transformers.model_cache import ModelCache
from grpo.policy.transformers.quantization import bitsandbytes_config
from tests.models.families import tiny_config, tiny_model
from tests.places import DESK_MODEL
from tests.tasks.adapted import adapted_policy


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


@pytest.mark.parametrize("offset", [0, 8, 16])
def test_a_loaded_policy_computes_what_the_policy_in_memory_computes(tmp_path: Path, offset: int):
    """Bit for bit, wherever in its file the weights begin: one token at a time, as it decodes, and all at once."""
    folder = Path(shutil.copytree(DESK_MODEL, tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt", "padding": "x" * offset})
    loaded = load(folder).model
    trained = copy.deepcopy(loaded)
    for ids in ([[7]], [[5, 9, 3]]):
        with torch.no_grad():
            one, other = (model(torch.tensor(ids), use_cache=False).logits for model in (loaded, trained))
        assert torch.equal(one, other)


def test_a_missing_model_is_refused(tmp_path: Path):
    """The message names the setting."""
    with pytest.raises(PolicyError, match=r"the folder does not exist\. Set policy\.model"):
        load(tmp_path / "nowhere")


def test_pickled_weights_are_refused(folder: Path):
    """Loading a pickle may run code."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(PolicyError, match="Pickled weights are refused"):
        load(folder)


def test_weights_of_another_architecture_are_refused(folder: Path):
    """A third layer in the config is missing from the file."""
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match=r"weights in .* do not fit"):
        load(folder)


def test_truncated_weights_are_refused(folder: Path):
    """A safetensors file without its last 100 bytes."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(PolicyError, match=r"model\.safetensors is damaged: .*\. Fetch or save it again"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"model_type": "nonesuch"},
            r"of the type 'nonesuch', which is refused because transformers [\d.]+ does not know this type\. Set",
        ),
        (
            {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling.Own"}},
            r"of the type 'own', which is refused because its code comes with the weights \(auto_map\), and is not run",
        ),
        ({"intermediate_size": 48}, r"weights in .* do not fit .*mismatched_keys.*mlp\.down_proj"),
    ],
)
def test_a_config_that_is_not_that_of_the_weights_or_of_transformers_is_refused(
    folder: Path, changes: dict, reason: str
):
    """An unknown type, one with code of its own, and other sizes."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match=reason):
        load(folder)


def test_a_tokenizer_of_another_model_is_refused(folder: Path):
    """It has tokens that the model does not embed."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DESK_MODEL / name, folder / name)
    rows = load_file(folder / "model.safetensors")["model.embed_tokens.weight"].shape[0]
    with pytest.raises(
        PolicyError, match=rf"has 768 tokens, and not the {rows} that the model embeds. Call resize_token"
    ):
        load(folder)


def test_a_token_that_a_conversation_has_and_the_model_does_not_embed_is_refused(folder: Path):
    """Added for a template without resize_token_embeddings; one that no template prints may be there."""
    tokenizer = load_tokenizer(folder)
    rows = load_file(folder / "model.safetensors")["model.embed_tokens.weight"].shape[0]
    tokenizer.add_tokens([f"<|filler_{index}|>" for index in range(rows - len(tokenizer))] + ["<|unused|>", "<|turn|>"])
    tokenizer.save_pretrained(folder)
    assert load(folder).max_context == 1024
    with pytest.raises(PolicyError, match=rf"has '<\|turn\|>' beyond the {rows} that the model embeds"):
        load(folder, chat_template="{{ messages[0].content }}<|turn|>")


def test_weights_of_nan_are_refused_with_their_names(folder: Path):
    """Of two tensors the first is named."""
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    tensors["model.layers.0.mlp.down_proj.weight"][0, 0] = float("inf")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PolicyError, match=r"NaN or infinite values, 2 tensors, the first model\.layers\.0\.mlp\.down"):
        load(folder)


MXFP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""Numbers of four bits: a sign, two bits of exponent and one of mantissa."""


def test_published_weights_in_mxfp4_are_read_in_float32(folder: Path, tmp_path: Path):
    """gpt-oss: two numbers a byte, the lower half first, times 2^(scale − 127) for each 32 of them."""
    config = tiny_config("gpt_oss")
    config.intermediate_size = 64
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "published")
    tensors = load_file(tmp_path / "published" / "model.safetensors")
    expected = {}
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(118, 122, (experts, outputs, inputs // 32), dtype=torch.uint8)
        numbers = torch.stack([MXFP4[(blocks & 15).long()], MXFP4[(blocks >> 4).long()]], dim=-1).flatten(-2)
        expected[name] = (numbers * torch.exp2(scales.float() - 127)[..., None]).flatten(-2).transpose(1, 2)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    loaded = _published(folder, tmp_path / "published", tensors, {"quant_method": "mxfp4"})
    assert expected
    assert all(torch.equal(loaded.model.state_dict()[name], value) for name, value in expected.items())


def test_published_weights_in_fp8_are_read_in_float32(folder: Path, tmp_path: Path):
    """DeepSeek-V3 and Qwen3: numbers of eight bits, times a scale for each block of 16 × 16 here."""
    model = tiny_model("qwen3")
    model.save_pretrained(tmp_path / "published")
    tensors = load_file(tmp_path / "published" / "model.safetensors")
    expected = {}
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        outputs, inputs = tensors[name].shape
        tensors[name] = (tensors[name] * 10).to(torch.float8_e4m3fn)
        scale = torch.rand(-(-outputs // 16), -(-inputs // 16)) + 0.5
        whole = scale.repeat_interleave(16, 0).repeat_interleave(16, 1)[:outputs, :inputs]
        expected[name] = tensors[name].float() * whole
        tensors[f"{name}_scale_inv"] = scale
    tensors |= {name: tensor.bfloat16() for name, tensor in tensors.items() if "norm" in name or "embed" in name}
    quantization = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
    loaded = _published(folder, tmp_path / "published", tensors, quantization)
    assert expected
    assert all(torch.equal(loaded.model.state_dict()[name], value) for name, value in expected.items())
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}


def test_published_weights_that_their_blocks_do_not_divide_are_refused(folder: Path, tmp_path: Path):
    """40 rows in blocks of 16, as a projection of DeepSeek-V3 has them: transformers does not read it."""
    config = tiny_config("qwen3")
    config.intermediate_size = 40
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "published")
    tensors = load_file(tmp_path / "published" / "model.safetensors")
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        outputs, inputs = tensors[name].shape
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = torch.ones(-(-outputs // 16), -(-inputs // 16))
    quantization = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
    with pytest.raises(PolicyError, match="because their sizes are not multiples of their blocks"):
        _published(folder, tmp_path / "published", tensors, quantization)


def test_weights_that_a_leftover_entry_calls_quantized_are_read_as_they_are(folder: Path, tmp_path: Path):
    """A conversion to float32 left the entry of its source, in either place; what is saved has none."""
    expected = load(folder).hash
    config = json.loads((folder / "config.json").read_text())
    for method in ("awq", "fp8"):
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": method}}))
        policy = load(folder)
        assert policy.hash == expected
        policy.save(tmp_path / method)
        assert "quantization_config" not in json.loads((tmp_path / method / "config.json").read_text())


def _published(
    tokenizer: Path, folder: Path, tensors: dict[str, torch.Tensor], quantization: dict
) -> TransformersPolicy:
    """Load quantized weights with the config of their format."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)
    loaded = load(folder)
    loaded.save(folder.parent / "checkpoint")  # in float32: a run reads its own checkpoints
    assert load(folder.parent / "checkpoint").hash == loaded.hash
    return loaded


def test_bounds_that_are_infinite_are_not_weights(tiny_folder: Path):
    """Gemma 4 clips the inputs of its linear layers at ±inf, which are buffers."""
    TransformersPolicy(tiny_model("gemma4"), load_tokenizer(tiny_folder))


@pytest.mark.parametrize("family", ["openai-gpt", "minimax", "xglm", "llama"])
def test_weights_are_held_in_bfloat16_with_buffers_that_the_model_computes_with(tiny_folder: Path, family: str):
    """Three families multiply buffers with weights, which then have the weights' dtype."""
    held = TransformersPolicy(tiny_model(family), load_tokenizer(tiny_folder)).in_dtype("bfloat16")
    assert held.model(torch.arange(4)[None], use_cache=False).logits.dtype == torch.bfloat16


@pytest.mark.parametrize(("family", "setting"), [("mpt", "max_seq_len"), ("whisper", "max_target_positions")])
def test_the_context_is_bounded_by_what_a_family_calls_it(family: str, setting: str):
    """MPT's and Whisper's configs have no max_position_embeddings."""
    config = tiny_config(family)
    setattr(config, setting, 77)
    assert context_limit(config) == 77


@pytest.mark.parametrize(("kind", "setting"), [("longrope", "short_factor"), ("dynamic", "rope_type")])
def test_a_context_that_is_below_the_positions_says_why(kind: str, setting: str):
    """4k of 128k, with the setting that changes it; with one embedding at every length, all positions are read."""
    config = tiny_config("phi3")
    config.max_position_embeddings = 131_072
    config.rope_parameters = {
        "rope_type": kind, "rope_theta": 10_000.0, "factor": 32.0, "original_max_position_embeddings": 4096,
        "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
    }  # fmt: skip
    assert describe_context(config).startswith("4,096 of 131,072 tokens: ")
    assert f"({kind})" in describe_context(config)
    assert f"rope_parameters.{setting} in config.json" in describe_context(config)
    config.rope_parameters |= {"short_factor": [2.0] * 8} if kind == "longrope" else {"rope_type": "yarn"}
    assert describe_context(config) == "131,072 tokens"


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
    assert str(raised.value).endswith(". Add tokenizer.json")


def _digest(*tensors: tuple[str, torch.Tensor]) -> str:
    """The hash as it is described: name, shape and number type, then the bytes, sorted by name; 16 hex digits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def test_the_hash_is_of_names_shapes_types_and_bytes():
    """Two weights in the order of their names; the transpose of one, laid out as itself, is another policy."""
    module = torch.nn.Linear(2, 3)
    bias, weight = module.bias.detach(), module.weight.detach()
    assert weights_hash(module) == _digest(("weight", weight), ("bias", bias))  # type: ignore[arg-type]
    turned = torch.nn.Linear(3, 2, bias=False)
    turned.weight = torch.nn.Parameter(weight.T)  # not contiguous
    assert weights_hash(turned) == _digest(("weight", weight.T.contiguous()))  # type: ignore[arg-type]
    module.scale = torch.nn.Parameter(torch.tensor(0.5))  # no dimension, as the learned activations of Apertus
    scale = ("scale", module.scale.detach())
    assert weights_hash(module) == _digest(("weight", weight), ("bias", bias), scale)  # type: ignore[arg-type]
    half = torch.nn.Linear(2, 3).half()
    assert weights_hash(half) == _digest(("weight", half.weight.detach()), ("bias", half.bias.detach()))  # type: ignore[arg-type]


def test_a_policy_has_the_context_of_its_model_and_no_dropout(folder: Path):
    """1024 positions; a model that was in training mode is taken out of it."""
    policy = load(folder)
    assert (policy.max_context, policy.merged_hash) == (1024, None)
    again = TransformersPolicy(policy.model.train(), policy.tokenizer)
    assert not again.model.training
    assert again.hash == policy.hash


def test_a_model_is_loaded_in_float32_whatever_it_was_saved_in(folder: Path):
    """The embedded bfloat16 weights, without loss: the hash is that of the float32 copy."""
    half = load(folder).model.bfloat16()
    half.save_pretrained(folder)
    policy = load(folder)
    assert policy.model.dtype == torch.float32
    assert policy.hash == weights_hash(half.float())


def test_a_chat_template_of_the_config_replaces_that_of_the_folder(folder: Path):
    """In the tokenizer alone and with the model; without one the folder's stays."""
    other = "{{ messages[0].content }}"
    assert load_tokenizer(folder, chat_template=other).chat_template == other
    assert load(folder, chat_template=other).tokenizer.chat_template == other
    assert load(folder).tokenizer.chat_template == load_tokenizer(folder).chat_template != other


def test_unexpected_and_missing_weights_are_named_with_the_architecture(folder: Path):
    """At most three of each kind, in order: the eleven of a third layer are missing."""
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError) as refusal:
        load(folder)
    message = str(refusal.value)
    assert message.startswith(f"weights in {folder} do not fit ['LlamaForCausalLM']: {{'missing_keys': [")
    assert message.count("model.layers.2.") == 3
    assert "'model.layers.2.input_layernorm.weight'" in message


@pytest.fixture
def adapted(folder: Path, tmp_path: Path) -> Path:
    """A folder with adapters for the model in `folder`."""
    policy = adapted_policy(folder)
    policy.save(tmp_path / "adapters")
    return tmp_path / "adapters"


def test_adapters_need_the_folder_of_their_model(folder: Path, adapted: Path):
    """Without it they are refused; with it they are a policy of their own, whose merged weights are another's."""
    assert not (adapted / "model.safetensors").exists()
    with pytest.raises(PolicyError) as refusal:
        load(adapted)
    assert str(refusal.value) == (f"{adapted} holds adapters only. Give the folder of the model that they are for")
    policy = load(adapted, base=folder)
    assert policy.hash != load(folder).hash
    whole = merge_adapters(policy.model)
    assert policy.merged_hash == weights_hash(whole) != policy.hash
    assert policy.tokenizer.chat_template == load_tokenizer(folder).chat_template


def test_adapters_are_kept_and_taken_by_their_hash(folder: Path, adapted: Path):
    """From the folder and its base, then from memory; what is taken is there no more."""
    model_cache, expected = ModelCache(), load(adapted, base=folder).hash
    policy = model_cache.get(expected, adapted, base=folder)
    assert policy.hash == expected
    assert model_cache.get(expected, adapted) is policy
    assert model_cache.take(expected, adapted) is policy
    other = model_cache.take(expected, adapted, base=folder)
    assert other is not policy
    assert model_cache.get(expected, adapted, base=folder) is not other


def test_the_least_recently_used_policy_is_evicted_first(folder: Path):
    """Of three places: the first is used again, the fourth evicts the second."""
    model_cache = ModelCache()
    policies = []
    for name in ("a", "b", "c", "d"):
        policy = load(folder)
        policy.hash = name
        policies.append(policy)
        if name == "d":
            assert model_cache.get("a", folder) is policies[0]
        model_cache.put(policy)
    for policy in (policies[0], policies[2], policies[3]):
        assert model_cache.get(policy.hash, folder) is policy
    with pytest.raises(
        PolicyError, match=rf"^{folder} holds policy [0-9a-f]{{16}}, expected b: its files were changed"
    ):
        model_cache.get("b", folder)


def test_a_policy_that_is_put_again_is_the_newest_of_its_name(folder: Path):
    """One place: it stays there itself."""
    model_cache = ModelCache(limit=1)
    first, second = load(folder), load(folder)
    model_cache.put(first)
    model_cache.put(second)
    assert model_cache.get(first.hash, folder) is second


def test_quantization_has_the_config_of_transformers(monkeypatch: pytest.MonkeyPatch):
    """On a machine with a GPU: the package is looked up first; int8, or nf4 with doubly quantized constants."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for kind in ("int8", "nf4"):
        with pytest.raises(PolicyError) as refusal:
            bitsandbytes_config(kind)  # type: ignore[arg-type]
        assert str(refusal.value) == (
            f"policy.quantization {kind} needs bitsandbytes, which is not installed. "
            "Call pip install 'grpo-agent-framework[quantization]'"
        )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "bitsandbytes" else None)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.49.0")
    eight, four = bitsandbytes_config("int8"), bitsandbytes_config("nf4")
    assert (eight.load_in_8bit, eight.load_in_4bit) == (True, False)
    assert (four.load_in_8bit, four.load_in_4bit) == (False, True)
    assert (four.bnb_4bit_quant_type, four.bnb_4bit_use_double_quant) == ("nf4", True)


def test_quantization_without_a_gpu_names_the_setting(monkeypatch: pytest.MonkeyPatch):
    """The whole message."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(PolicyError) as refusal:
        bitsandbytes_config("int8")
    assert str(refusal.value) == (
        "policy.quantization int8 computes on an NVIDIA GPU, and this machine has none. Leave it out"
    )


def test_models_are_loaded_from_local_files_without_remote_code(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """In float32, safetensors alone, quantized as configured; its message is in the error."""
    asked: dict[str, object] = {}

    def refuse(name: str, **options: object) -> None:
        asked.update(options, name=name)
        raise OSError("no such weights")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    installed = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: object() if name == "bitsandbytes" else installed(name)
    )
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)
    with pytest.raises(
        PolicyError,
        match=rf"^cannot load the model in {folder}: no such weights\. Correct its config.json, or fetch it again$",
    ):
        load(folder, quantization="int8")
    stored = asked.pop("quantization_config")
    assert isinstance(stored, BitsAndBytesConfig)
    assert stored.load_in_8bit
    assert asked == {
        "name": str(folder),
        "use_safetensors": True,
        "config": asked["config"],
        "trust_remote_code": False,
        "dtype": torch.float32,
        "output_loading_info": True,
        "local_files_only": True,
        "ignore_mismatched_sizes": True,
        "distributed_config": None,
    }


def test_a_model_whose_checkpoints_cannot_be_read_is_refused(folder: Path):
    """The decoder of Mllama saves a config of its own, which transformers loads as no causal language model."""
    expected = (
        "MllamaForCausalLM is refused, because .* a config of type 'mllama_text_model', as a causal language model"
    )
    with pytest.raises(PolicyError, match=expected):
        TransformersPolicy(tiny_model("mllama"), load_tokenizer(folder))
