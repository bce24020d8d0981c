"""Context of a model: the number of tokens that it reads, and the setting that limits it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from grpo.policy.plain_models import PlainConfig, plain_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ModelConfig: TypeAlias = "PretrainedConfig | PlainConfig"
UNBOUNDED = 2**20
"""Tokens in the context of a model without a stated limit."""
_POSITIONS = ("max_position_embeddings", "max_seq_len", "max_target_positions")
"""Config settings that limit the positions. MPT uses the second name, and Whisper's decoder the third."""
_REMEDIES = {
    "longrope": "rope_parameters.short_factor in config.json to long_factor",
    "dynamic": "rope_parameters.rope_type in config.json to yarn, with its factor",
}


def context_limit(model_config: ModelConfig) -> int:
    """Maximum number of tokens in a model's context, or `UNBOUNDED` if its config states no limit.

    Some rotary embeddings (dynamic NTK, LongRoPE) change beyond the length of pretraining, and then depend on the
    longest conversation of a batch. So the length of pretraining is the limit. LongRoPE does not change if it has the
    same factors for both lengths.
    """
    config = model_config.get_text_config()
    limits = [layer.get("original_max_position_embeddings") for layer in _changing(config)]
    limits += [getattr(config, name, None) for name in _POSITIONS]
    return min((int(limit) for limit in limits if limit), default=UNBOUNDED)


def describe_context(model_config: ModelConfig) -> str:
    """Context of a model in words. If it is below the stated positions, the text gives the reason and the setting."""
    config, limit = model_config.get_text_config(), context_limit(model_config)
    if limit == UNBOUNDED:
        return "no limit that its config states"
    stated = max(int(getattr(config, name, None) or 0) for name in _POSITIONS)
    if limit >= stated:
        return f"{limit:,} tokens"
    kind = next(layer["rope_type"] for layer in _changing(config))
    return (
        f"{limit:,} of {stated:,} tokens: beyond the length of pretraining its rotary embeddings ({kind}) change with "
        f"the longest conversation of a batch. If you want one embedding at every length, set {_REMEDIES[kind]}"
    )


def described_context(folder: Path) -> str:
    """Context of the model in a folder, see `describe_context`. Reads only config.json."""
    return describe_context(read_config(folder))


def read_config(folder: Path) -> ModelConfig:
    """Config of the model in a folder. A plain model's config is read without transformers, which imports PyTorch."""
    if (plain := plain_config(folder)) is not None:
        return plain
    from transformers import AutoConfig

    config: PretrainedConfig = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    return config


def _changing(config: ModelConfig) -> Iterator[dict[str, Any]]:
    """Parameters of rotary embeddings that depend on the length, for the whole model or for a kind of layer."""
    if isinstance(config, PlainConfig):
        return
    rope = getattr(config, "rope_parameters", None) or {}
    for layer in (rope, *rope.values()):
        kind = layer.get("rope_type") if isinstance(layer, dict) else None
        if kind == "dynamic" or (kind == "longrope" and layer.get("short_factor") != layer.get("long_factor")):
            yield layer
