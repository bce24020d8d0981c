"""Families of models that the general procedure does not build, and what they need."""

from __future__ import annotations

from typing import Any

OVERRIDES: dict[str, dict[str, Any]] = {
    "big_bird": {"attention_type": "original_full"},  # its sparse attention is for encoders
    "blt": {  # of the size of the tokenizer's 264 tokens at least; its own is 260
        "patching_threshold": 4.8,
        "vocab_size": 384,
        **{f"{part}_config": {"vocab_size": 384} for part in ("encoder", "decoder", "patcher")},
    },
    "dbrx": {"attn_config": {"rope_theta": 10_000.0, "clip_qkv": 2.0, "kv_n_heads": 2}, "ffn_config": {"moe_top_k": 2}},
    "cohere_compass_text": {
        "logit_scale": 0.6,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    },
    "dots3_note_text": {
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 8,
        "swa_kv_lora_rank": 8,
        "swa_head_dim": 16,
        "swa_qk_nope_head_dim": 8,
        "swa_v_head_dim": 12,
        "head_dim": 16,
    },
    "granitemoehybrid": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
    },
    "laguna": {"num_attention_heads_per_layer": [4, 2, 4, 2]},
    "inkling_text": {"logits_mup_width_multiplier": 2.0},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_multiple_of": 16},
    "qwen4_exp_text": {
        "eos_token_id": 2,
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
        "ngram_vocab_size_base": 256,
        "split_ngram_parts": 4,
        "ple_layer_ids": [1],
    },
    "xlstm": {"hidden_size": 128, "embedding_dim": 128, "num_blocks": 4},
    "zamba": {
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 5,
    },
    "bamba": {"attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_d_head": 16},
    "cohere": {"logit_scale": 0.6},
    "cohere2": {"logit_scale": 0.6},
    "cohere2_moe": {"logit_scale": 0.6},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gemma3n_text": {
        "intermediate_size": 48,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gemma4_text": {"global_head_dim": 32, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "llama4_text": {"floor_scale": 16, "attn_scale": 0.5},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 8},
    "deepseek_v4": {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16}},
    "minimax_m3_vl_text": {
        "layer_types": ["minimax_m3_sparse", "full_attention"] * 2,
        "index_block_size": 8,
        "index_topk_blocks": 2,
        "index_n_heads": 2,
    },
    "ministral3": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.5,
        }
    },
    "minicpm3": {"dim_model_base": 40},
    "nemotron": {"num_key_value_heads": 2},
    "reformer": {"axial_pos_embds_dim": [16, 48]},
    "xlm": {"causal": True},
    "xmod": {"default_language": "en_XX"},
}
"""Arguments of a family's config; those of a sub-config under its name."""

UNBUILDABLE: dict[str, str] = {
    "gemma3n": "its vision tower needs the package timm; gemma3n_text is its language model",
    "gemma4_assistant": "a draft model, which reads the hidden states and the keys of another model",
    "gemma4_unified_assistant": "a draft model, which reads the hidden states and the keys of another model",
    "musicgen": "generates audio codebooks; its causal class takes the config of its decoder alone",
    "musicgen_melody": "generates audio codebooks; its causal class takes the config of its decoder alone",
}
"""Families without a tiny model, with the reason."""

_SCALED = {"rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3 (whole queries, yarn)": (
        "deepseek_v3",
        {
            "q_lora_rank": None,
            "rope_parameters": {**_SCALED, "rope_type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "falcon (alibi)": ("falcon", {"alibi": True}),
    "falcon (new decoder)": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "gpt2 (scores by layer)": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    "gpt_bigcode (multi-head)": ("gpt_bigcode", {"multi_query": False}),
    "gpt_neox (sequential)": ("gpt_neox", {"use_parallel_residual": False}),
    "granitemoehybrid (rope)": ("granitemoehybrid", {"position_embedding_type": "rope"}),
    "llama (biases, tied, wide heads)": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 32},
    ),
    "llama (linear rope)": ("llama", {"rope_parameters": {**_SCALED, "rope_type": "linear"}}),
    "llama (llama3 rope)": (
        "llama",
        {"rope_parameters": {**_SCALED, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    ),
    "llama (yarn)": ("llama", {"rope_parameters": {**_SCALED, "rope_type": "yarn"}}),
    "mpt (learned positions)": ("mpt", {"attn_config": {"alibi": False, "clip_qkv": 1.0}}),
    "olmo (clipped)": ("olmo", {"clip_qkv": 1.0}),
    "opt (norms after)": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "phi (normed queries)": ("phi", {"qk_layernorm": True}),
    "stablelm (normed queries)": (
        "stablelm",
        {"qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": True},
    ),
}
"""Settings of a family that published models have and its default config has not."""

_SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}}
_PATCHES = {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "intermediate_size": 64}
WRAPPERS: dict[str, dict[str, Any]] = {
    "aria": {},
    "aya_vision": {},
    "dots3_note": {},
    "exaone4_5": {},
    "glm4v": {"text_config": _SECTIONS, "vision_config": {**_PATCHES, "out_hidden_size": 64}},
    "idefics3": {},
    "internvl": {},
    "kimi_k25": {},
    "lfm2_vl": {},
    "llama4": {},
    "llava": {},
    "llava_next": {},
    "llava_onevision": {},
    "mistral3": {},
    "paligemma": {},
    "qwen2_5_vl": {"text_config": _SECTIONS, "vision_config": {**_PATCHES, "out_hidden_size": 64}},
    "qwen2_audio": {},
    "qwen2_vl": {"text_config": _SECTIONS, "vision_config": _PATCHES},
    "qwen3_5": {},
    "qwen3_5_moe": {},
    "qwen3_vl": {},
    "qwen3_vl_moe": {},
    "qwen4_exp": {},
    "smolvlm": {},
    "voxtral": {},
}
"""Families whose published weights are those of a class for text and other inputs, with settings of their parts.

Those of them that are families of causal language models too have a text class for the same config.
"""
