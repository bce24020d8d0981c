"""Families of models that the general procedure does not build, and what they need."""

from __future__ import annotations

from typing import Any

OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_d_head": 16},
    "cohere": {"logit_scale": 0.6},
    "cohere2": {"logit_scale": 0.6},
    "cohere2_moe": {"logit_scale": 0.6},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "gemma3n_text": {"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gemma4_text": {"global_head_dim": 32, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 8},
    "nemotron": {"num_key_value_heads": 2},
    "reformer": {"axial_pos_embds_dim": [16, 48]},
    "xmod": {"default_language": "en_XX"},
}
"""Arguments of a family's config; those of a sub-config under its name."""

UNBUILDABLE: dict[str, str] = {
    name: "not built yet"
    for name in [
        "blt",
        "cohere_compass_text",
        "dbrx",
        "dots1",
        "dots3_note",
        "gemma3n",
        "gemma4_assistant",
        "gemma4_unified_assistant",
        "granitemoehybrid",
        "musicgen",
        "musicgen_melody",
        "phi4_multimodal",
        "qwen4_exp",
        "qwen4_exp_text",
        "xlstm",
        "zamba",
    ]
}
"""Families without a tiny model, with the reason."""
