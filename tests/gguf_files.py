"""GGUF files of tiny Llamas, written with the package `gguf`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, get_tensor_name_map
from gguf.constants import MODEL_ARCH
from gguf.quants import quantize
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase


def write_gguf(
    folder: Path,
    file: Path,
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    settings: Mapping[str, float | str] = MappingProxyType({}),
    tensors: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> None:
    """Write the Llama in a folder as GGUF, with further settings of the family and further tensors."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    writer = GGUFWriter(file, "llama")
    _write_settings(writer, model.config)
    for name, value in settings.items():
        key = f"llama.{name}"
        writer.add_string(key, value) if isinstance(value, str) else writer.add_float32(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.numpy())
    _write_tokenizer(writer, tokenizer)
    _write_tensors(writer, model, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_settings(writer: GGUFWriter, config: Any) -> None:
    writer.add_name("tiny clerk")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _write_tokenizer(writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase) -> None:
    special = set(tokenizer.all_special_ids)
    names = [name for name, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    document = json.loads(tokenizer.backend_tokenizer.to_str())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types([TokenType.CONTROL if index in special else TokenType.NORMAL for index in range(len(names))])
    writer.add_token_merges([" ".join(pair) for pair in document["model"]["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id)
    writer.add_chat_template(tokenizer.chat_template)


def _write_tensors(writer: GGUFWriter, model: PreTrainedModel, kind: GGMLQuantizationType) -> None:
    """Weights under llama.cpp's names, queries and keys in its order of rotary pairs."""
    config = model.config
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weights = tensor.clone()
        for ending, count in heads.items():
            if name.endswith(ending):
                rows, columns = weights.shape
                weights = weights.view(count, 2, rows // count // 2, columns).transpose(1, 2).reshape(rows, columns)
        stored = kind if weights.dim() == 2 and weights.shape[1] % 32 == 0 else GGMLQuantizationType.F32  # blocks of 32
        base, _, suffix = name.rpartition(".")
        label = names.get_name(base)
        assert label is not None, name
        writer.add_tensor(f"{label}.{suffix}", quantize(weights.numpy(), stored), raw_dtype=stored)
