from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AttentionInterface

from grpo.errors import CapacityError, PolicyError
from grpo.policy.context import UNBOUNDED
from grpo.policy.transformers import exactness
from grpo.policy.transformers.exactness import PathCheck, choose_path
from grpo.policy.transformers.forward.attention import IMPLEMENTATION, flat_attention
from grpo.policy.transformers.forward.passes import forward_path
from grpo.policy.transformers.model import TransformersPolicy, load
from tests.models.families import tiny_model


@pytest.fixture(autouse=True)
def _no_results(monkeypatch: pytest.MonkeyPatch):
    """Each test compares its models itself."""
    monkeypatch.setattr(exactness, "_results", {})


@pytest.mark.parametrize(
    ("family", "path"),
    [("gemma2", "flat"), ("gpt_oss", "flat"), ("mamba2", "padded"), ("llama4_text", "unpadded"), ("rwkv", "uncached")],
)
def test_the_fastest_exact_path_is_chosen(family: str, path: str):
    """Windows and caps are exact in flat rows; Mamba only with its own cache; RWKV's cache ignores padding."""
    model = tiny_model(family)
    check = choose_path(model, "0")
    assert (check.path, forward_path(model)) == (path, path)
    assert check.logprob_error < 1e-4
    assert check.gradient_error < 1e-4


@pytest.mark.parametrize("without_gradients", [torch.inference_mode, torch.no_grad])
def test_a_model_is_loaded_and_compared_where_the_caller_has_gradients_off(
    tiny_folder: Path, without_gradients: type[torch.no_grad]
):
    model = tiny_model("llama")
    with without_gradients():
        policy = load(tiny_folder)
        TransformersPolicy(model, policy.tokenizer)
    assert policy.path_check.path == "flat"
    policy.model(torch.tensor([[1, 2]])).logits.sum().backward()
    assert not torch.is_inference(next(policy.model.parameters()))


def test_a_model_that_attends_to_later_tokens_is_refused():
    """XLNet permutes the order of its tokens."""
    with pytest.raises(PolicyError, match="refused, because its tokens attend to later ones, so that it is not causal"):
        choose_path(tiny_model("xlnet"), "0")


def test_a_model_that_no_path_computes_is_refused_with_each_reason():
    """Reformer runs without a gradient alone."""
    with pytest.raises(PolicyError, match=r"no forward path agrees .*: flat \(grpo_flat\): .*; uncached \(eager\): "):
        choose_path(tiny_model("reformer"), "0")


@pytest.mark.parametrize("part", ["scaling", "softcap", "s_aux", "mask"])
def test_an_attention_that_drops_a_part_is_not_taken(monkeypatch: pytest.MonkeyPatch, part: str):
    """Each part of the computation that another library forgot once: scale, cap, sinks, window."""
    families = {"scaling": "granite", "softcap": "gemma2", "s_aux": "gpt_oss", "mask": "olmo3"}
    model = tiny_model(families[part])

    def forgetful(module, query, key, value, attention_mask, **kwargs):  # type: ignore[no-untyped-def]
        kwargs[part] = None
        return flat_attention(module, query, key, value, None if part == "mask" else attention_mask, **kwargs)

    monkeypatch.setitem(AttentionInterface._global_mapping, IMPLEMENTATION, forgetful)
    check = choose_path(model, "0")
    assert check.path != "flat"
    assert check.rejected[0].startswith("flat (grpo_flat): off by ")


def test_a_gradient_that_is_off_is_not_taken(monkeypatch: pytest.MonkeyPatch):
    """Log-probabilities agree, but no gradient flows through the values."""

    def detached(module, query, key, value, attention_mask, **kwargs):  # type: ignore[no-untyped-def]
        return flat_attention(module, query, key, value.detach(), attention_mask, **kwargs)

    monkeypatch.setitem(AttentionInterface._global_mapping, IMPLEMENTATION, detached)
    check = choose_path(tiny_model("llama"), "0")
    assert check.path != "flat"


def test_a_comparison_without_memory_does_not_choose_another_path(monkeypatch: pytest.MonkeyPatch):
    """The error is raised: a slower path would be taken, and kept for the process, for a reason that passes."""

    def exhausted(*arguments, **kwargs):  # type: ignore[no-untyped-def]
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setitem(AttentionInterface._global_mapping, IMPLEMENTATION, exhausted)
    with pytest.raises(CapacityError, match="memory ran out in the comparison of LlamaForCausalLM"):
        choose_path(tiny_model("llama"), "0")


def test_long_windows_are_shortened_for_the_comparison_alone():
    """A window of 4096 is compared with conversations of some 40 tokens, and is 4096 again afterwards."""
    model = tiny_model("mistral")
    model.config.sliding_window = 4096
    attention = model.model.layers[0].self_attn
    attention.sliding_window = 4096
    seen = []
    handle = model.model.register_forward_pre_hook(lambda *_: seen.append(model.config.sliding_window))
    choose_path(model, "0")
    handle.remove()
    assert set(seen) == {8}
    assert (model.config.sliding_window, attention.sliding_window) == (4096, 4096)


def test_weights_in_bfloat16_are_compared_in_float32(tiny_folder: Path):
    """Rounding differs by path, and would reject the fast one; the weights are bfloat16 again afterwards."""
    policy = load(tiny_folder)
    held = policy.in_dtype("bfloat16")
    assert held.path_check is policy.path_check
    weights = [parameter.data_ptr() for parameter in held.model.parameters()]
    check = choose_path(held.model, "other")
    assert (check.path, check.rejected) == ("flat", ())
    assert check.logprob_error < 1e-4
    assert {parameter.dtype for parameter in held.model.parameters()} == {torch.bfloat16}
    assert [parameter.data_ptr() for parameter in held.model.parameters()] == weights


def test_a_policy_version_is_compared_once(monkeypatch: pytest.MonkeyPatch):
    """The same weights and config take the result; other weights or another config do not."""
    compared = []
    compare = exactness._compare
    monkeypatch.setattr(exactness, "_compare", lambda *args: (compared.append(1), compare(*args))[1])
    for version in ("1", "1", "2"):
        choose_path(tiny_model("llama"), version)
    assert len(compared) == 2
    other = tiny_model("llama")
    other.config.rms_norm_eps = 1e-3
    choose_path(other, "1")
    assert len(compared) == 3


def test_weights_and_gradients_are_left_as_they_were():
    """Frozen weights stay frozen, and no gradient is left behind."""
    model = tiny_model("llama")
    model.model.embed_tokens.requires_grad_(False)
    choose_path(model, "0")
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["model.embed_tokens.weight"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_without_a_path_has_no_forward_pass():
    """No silent default: a raw model is to be wrapped first."""
    with pytest.raises(PolicyError, match=r"LlamaForCausalLM has no forward path yet\. Wrap it in a Transformers"):
        forward_path(tiny_model("llama"))


def test_the_check_reads_as_a_sentence(tiny_folder: Path):
    """Path, attention and both errors."""
    check = load(tiny_folder).path_check
    assert str(PathCheck(path="flat", attention="a", logprob_error=2e-6, gradient_error=3e-7)) == (
        "flat (a): log-probabilities within 2.0e-06, gradient within 3.0e-07 of a plain forward pass"
    )
    assert check.path == "flat"


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        ({"rope_type": "default", "rope_theta": 1e4}, 512),
        ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 128}, 128),
        ({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 128}, 512),
    ],
)
def test_rotary_embeddings_that_depend_on_the_batch_limit_the_context(tiny_folder: Path, rope: dict, limit: int):
    """Dynamic NTK stretches with the longest conversation of a batch; YaRN is fixed."""
    policy = load(tiny_folder)
    policy.model.config.max_position_embeddings = 512
    policy.model.config.rope_parameters = rope
    assert policy.max_context == limit


def test_a_model_without_positions_has_no_limit_of_its_own(tiny_folder: Path):
    """Mamba's config states none."""
    policy = TransformersPolicy(tiny_model("mamba"), load(tiny_folder).tokenizer)
    assert "max_position_embeddings" not in json.loads(policy.model.config.to_json_string())
    assert policy.max_context == UNBOUNDED
    assert torch.is_tensor(policy.model.get_output_embeddings().weight)
