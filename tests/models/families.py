"""Random tiny models of the families of causal language models that transformers builds from a config."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM, PretrainedConfig, PreTrainedModel
from transformers.integrations.heterogeneity.configuration_utils import AmbiguousGlobalPerLayerAttributeError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.models.exceptions import OVERRIDES, UNBUILDABLE, VARIANTS, WRAPPERS

VOCABULARY = 384
LAYERS = 4
_WHOLE = " (whole)"
WINDOW = 16

_SIZES: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    (r"(.*_)?vocab_size(_per_layer_input)?|encoder_hash_byte_group_vocab", lambda value: min(value, VOCABULARY)),
    (r"num_hidden_layers|n_layers?|num_layers|(en|de)coder_layers|num_(en|de)coder_layers", lambda value: LAYERS),
    (
        r"(hidden_size|d_model|n_embd|emb_dim|embedding_dim|embedding_size|lru_width|backbone_hidden_size|adapter_in_dim|adapter_input_size|adapter_out_dim|hidden_size_global)",
        lambda v: 64,
    ),
    (r"(in|out)put_embedding_size|word_embed_proj_dim|.*_embed_dim", lambda value: 64),
    (r".*(num_key_value_heads|num_kv_heads|kv_n_heads)", lambda value: 1 if value == 1 else 2),
    (r"linear_num_value_heads", lambda value: 4),
    (r"linear_value_head_dim", lambda value: 32),  # normed: a short vector is often close to 0, where rounding counts
    (r"linear_num_key_heads", lambda value: 2),
    (r"index(er)?_n_heads", lambda value: 16),  # fewer would give many keys a score of 0, a tie
    (r".*(num_attention_heads|n_heads?|num_heads|attention_heads)", lambda value: 4),
    (r"qk_rope_head_dim|qk_nope_head_dim", lambda value: 8),
    (r"v_head_dim", lambda value: 12),
    (r"rotary_dim", lambda value: 8),
    (r".*(head_dim|d_head|kv_channels|headdim|dim_head|attention_head_size)", lambda value: 16),
    (r".*(lora_rank|lowrank|_rank)", lambda value: 8),
    (
        r".*(intermediate_size|ffn_dim|ffn_hidden_size|d_ff|dim_ff|dff|d_inner|feed_forward_size|intermediate_size_mlp)",
        lambda value: 48 if value else 0,
    ),
    (r"(n_shared_experts|num_shared_experts|moe_num_shared_experts)", lambda value: 1),
    (r"zero_expert_num", lambda value: 2),
    (r"(n_routed_experts|num_experts|num_local_experts|moe_num_experts)", lambda value: 4 if value > 1 else value),
    (r"(num_experts_per_tok|num_experts_per_token|moe_topk|moe_top_k|moe_k)", lambda value: min(value, 2)),
    (r"(n_group|num_expert_group)", lambda value: 2 if value > 1 else 1),
    (r"topk_group", lambda value: 1),
    (
        r"(.*_)?(sliding_window|sliding_window_size|window_size|attention_window_size|local_attention|attention_chunk_size|local_attention_window_len|log_scaling_n_floor)",
        lambda value: WINDOW,
    ),
    (r"keep_window_size|index_topk", lambda value: WINDOW),
    (
        r"(max_position_embeddings|n_positions|n_ctx|max_seq_len|context_length|model_max_length|rel_extent)",
        lambda value: 512,
    ),
    (r".*(softcap|soft_cap|softcapping)", lambda value: 4.0),
    (r"query_pre_attn_scalar", lambda value: 6),
    (r"(mamba_d_state|ssm_state_size|state_size)", lambda value: 8),
    (r"mamba_d_ssm", lambda value: 64),
    (r"(mamba_n_groups|n_groups)", lambda value: 1 if value == 1 else 2),
    (r"(mamba_)?chunk_size|block_size", lambda value: 8),
    (r"(mamba_dt_rank|time_step_rank)", lambda value: 8),
    (r"hidden_size_per_layer_input", lambda value: 16 if value else 0),
    (r"router_hidden_size|out_hidden_size|.*text_hidden_size", lambda value: 64),
    (r"ext_pw_out_channel|depthwise_separable_out_channel|nemo_conv_channels", lambda value: 64),
    (r"num_blocks", lambda value: LAYERS),
    (r"position_embedding_size", lambda value: 64),
    (r"first_k_dense_replace|num_dense_layers", lambda value: min(value, 1)),
    (r"attn_layer_period", lambda value: 2),
    (r"attn_layer_offset", lambda value: 1),
    (
        r".*multiplier|logits_scaling",
        lambda value: 0.6 if isinstance(value, float) and value == 1.0 else value,
    ),
)
"""Field of a config (a whole match), and its value in a tiny model by the default one; the first match counts."""


def families() -> tuple[str, ...]:
    """Model types with a causal language model that can be built, by name."""
    return tuple(sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(UNBUILDABLE)))


def unbuildable() -> dict[str, str]:
    """Model types without one, with the reason."""
    return dict(UNBUILDABLE)


def variants() -> tuple[str, ...]:
    """Names of settings of some families that their default configs have not."""
    return tuple(sorted(VARIANTS))


def wrappers() -> tuple[str, ...]:
    """Names of models for text and other inputs: `llava (whole)`."""
    return tuple(f"{family}{_WHOLE}" for family in sorted(WRAPPERS))


def tiny_config(name: str) -> PretrainedConfig:
    """A config of a family or a variant with every kind of layer and small sizes."""
    family, settings = VARIANTS.get(name, (name, {}))
    if name.endswith(_WHOLE):
        family = name.removesuffix(_WHOLE)
        settings = WRAPPERS[family]
    config = CONFIG_MAPPING[family]
    return config(**_small(config, OVERRIDES.get(family, {}) | settings))


def tiny_model(name: str, seed: int = 0) -> PreTrainedModel:
    """A model of a family or a variant in float32 and evaluation mode, whose parameters all have an effect."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loading = AutoModelForMultimodalLM if name.endswith(_WHOLE) else AutoModelForCausalLM
        model = loading.from_config(tiny_config(name), dtype=torch.float32)
        _sharpen(model)
    return model.eval()


def _small(config: type[PretrainedConfig], overrides: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a small config; keys of `overrides` that name a sub-config hold the overrides in it."""
    default = _default(config)
    values = {name: _value(default, name, field) for name, field in _fields(config).items()}
    small: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            rule = next((size for pattern, size in _SIZES if re.fullmatch(pattern, name)), None)
            if rule is not None:
                small[name] = rule(value)
    if values.get("kv_lora_rank") and "num_key_value_heads" in values:
        small["num_key_value_heads"] = small["num_attention_heads"]  # latent attention has a key of each head
    if "head_dim" in values and values["head_dim"] is None and "qk_rope_head_dim" not in values:
        small["head_dim"] = 16
    if "sliding_window" in values:
        values["sliding_window"] = small["sliding_window"] = WINDOW
    if "use_sliding_window" in values:
        small["use_sliding_window"] = True
    small |= _layer_lists(values)
    vocabulary = small.get("vocab_size", VOCABULARY)
    special = [n for n, value in values.items() if re.fullmatch(r".*_(id|index)", n) and isinstance(value, int)]
    for place, name in enumerate(name for name in special if values[name] >= vocabulary):
        small[name] = vocabulary - 1 - place
    if "is_decoder" in values:
        small["is_decoder"] = True
    for name, part in config.sub_configs.items():
        part_class = (
            type(getattr(default, name, None)) if not isinstance(part, type) or part.__name__ == "AutoConfig" else part
        )
        if issubclass(part_class, PretrainedConfig):
            small[name] = part_class(
                **_small(part_class, overrides.get(name, OVERRIDES.get(part_class.model_type, {})))
            )
    return small | {name: value for name, value in overrides.items() if name not in config.sub_configs}


def _fields(config: type[PretrainedConfig]) -> dict[str, Any]:
    fields = {field.name: field.default for field in dataclasses.fields(config)}
    return {name: value for name, value in fields.items() if not name.startswith("_") and name not in _COMMON}


_COMMON = {field.name for field in dataclasses.fields(PretrainedConfig)} - {"vocab_size", "is_decoder"}


def _default(config: type[PretrainedConfig]) -> PretrainedConfig | None:
    try:
        return config()
    except Exception as error:
        if "StrictDataclass" not in type(error).__name__:
            raise
        return None


def _value(default: PretrainedConfig | None, name: str, field: Any) -> Any:
    """Scalars as they are declared (computed ones are computed again), lists as the default config has them."""
    try:
        computed = getattr(default, name, field)
    except (AttributeError, AmbiguousGlobalPerLayerAttributeError):
        return field
    return computed if isinstance(computed, list) or field is dataclasses.MISSING else field


def _layer_lists(values: dict[str, Any]) -> dict[str, Any]:
    """Lists with an item for each layer, cut to the first layer of every kind and the last ones, in order."""
    count = next((values[name] for name in ("num_hidden_layers", "n_layers") if values.get(name)), 0)
    lists = {name: value for name, value in values.items() if isinstance(value, list) and len(value) == count > 0}
    lists = {name: value for name, value in lists.items() if value != list(range(count))}  # indices of layers
    if not lists:
        return {}
    if values.get("sliding_window") and lists.get("layer_types") == ["full_attention"] * count:
        lists["layer_types"] = ["sliding_attention", "full_attention"] * (count // 2)
    kinds = list(zip(*map(_hashable, lists.values()), strict=True))
    chosen = sorted({kinds.index(kind) for kind in kinds})
    for place in reversed(range(count)):
        if len(chosen) >= LAYERS:
            break
        if place not in chosen:
            chosen.append(place)
    chosen.sort()
    return {name: [value[place] for place in chosen] for name, value in lists.items()} | {
        "num_hidden_layers": len(chosen)
    }


def _hashable(values: list[Any]) -> list[str]:
    return [repr(value) for value in values]


@torch.no_grad()
def _sharpen(model: PreTrainedModel) -> None:
    """Draw matrices with a gain of 1, and add noise to tensors that are constant (norms, biases, sinks).

    A larger gain makes the rounding of float32 as large as 1e-4 nats in layers of linear attention.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        persistent = name in model.state_dict()
        if not persistent or not tensor.is_floating_point() or not tensor.numel():
            continue
        if tensor.min() == tensor.max() and tensor.abs().max() <= 1:
            tensor.add_(0.2 * torch.randn_like(tensor))
        elif tensor.dim() >= 2 and isinstance(tensor, torch.nn.Parameter):
            tensor.normal_(0, tensor.shape[-1] ** -0.5)
