"""Plain decoders, described by only their config.json: sizes, context and tokenizer, without PyTorch.

The checks before a run and the dry run look at a model before they start anything. They do not use transformers for
this, because it imports PyTorch and takes seconds to build even an empty model. The layers of the families here follow
from the numbers in the config. If a config has a key or a value that this module does not know, the model is not a
plain one. Then transformers reads it, and reports what is wrong with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from grpo.errors import PolicyError
from grpo.policy.model_files import CONFIG, read_object

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_BIASES = {"llama": ("attention_bias", "mlp_bias"), "qwen3": ("attention_bias",)}
"""Bias settings that a family reads. Qwen2 always has biases of queries, keys and values, without a setting."""


class _Rope(BaseModel):
    """Rotary embeddings that are the same at every length."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rope_type: Literal["default"] = "default"
    rope_theta: float | int


class PlainConfig(BaseModel):
    """The config.json of a decoder with attention and gated MLPs, with transformers' names."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    model_type: Literal["llama", "mistral", "qwen2", "qwen3"]
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    max_position_embeddings: PositiveInt
    tie_word_embeddings: bool
    head_dim: PositiveInt | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_parameters: _Rope | None = None
    rope_theta: float | int | None = None
    rope_scaling: None = None
    architectures: list[str] = Field(min_length=1, max_length=1)
    hidden_act: Literal["silu"] = "silu"
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    attention_dropout: float = 0.0
    pretraining_tp: Literal[1] = 1
    use_cache: bool = True
    use_sliding_window: Literal[False] = False
    sliding_window: PositiveInt | None = None
    max_window_layers: int | None = None
    layer_types: list[Literal["full_attention"]] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    transformers_version: str | None = None

    def get_text_config(self) -> Self:
        """Return the config itself, like transformers does for a model that reads only text."""
        return self

    @property
    def head_size(self) -> int:
        """Size of one attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def parameter_sizes(self) -> list[int]:
        """Number of weights in each tensor of the model. A head that is tied to the embeddings has no tensor."""
        queries, keys = self.num_attention_heads * self.head_size, self.num_key_value_heads * self.head_size
        hidden, mlp = self.hidden_size, self.intermediate_size
        layer = [queries * hidden, keys * hidden, keys * hidden, hidden * queries]
        if self.attention_bias:
            layer += [queries, keys, keys, hidden]
        if self.model_type == "qwen2":
            layer += [queries, keys, keys]
        if self.model_type == "qwen3":
            layer += [self.head_size, self.head_size]
        layer += [mlp * hidden, mlp * hidden, hidden * mlp]
        if self.mlp_bias:
            layer += [mlp, mlp, hidden]
        layer += [hidden, hidden]
        embeddings = [self.vocab_size * hidden] * (1 if self.tie_word_embeddings else 2)
        return [*embeddings, *layer * self.num_hidden_layers, hidden]


def plain_config(folder: Path) -> PlainConfig | None:
    """Config of the model in a folder, or None if transformers has to read it or the folder has no config."""
    if (document := _document(folder)) is None:
        return None
    try:
        config = PlainConfig.model_validate(document)
    except ValidationError:
        return None
    divides = config.num_attention_heads % config.num_key_value_heads == 0 and (
        config.head_dim is not None or config.hidden_size % config.num_attention_heads == 0
    )
    has_its_own = config.model_type != "qwen3" or config.head_dim is not None  # Qwen3's default is not the quotient
    biases = {name for name in ("attention_bias", "mlp_bias") if getattr(config, name)}
    reads_biases = biases <= {*_BIASES.get(config.model_type, ())}
    known = config.architectures == [_ARCHITECTURES[config.model_type]]
    return config if known and divides and has_its_own and reads_biases else None


def tokenizer_class(folder: Path) -> str | None:
    """Name of the transformers class that reads the tokenizer of a folder, or None if the folder does not settle it.

    AutoTokenizer takes the class from the config's type and from tokenizer_config.json, and imports PyTorch for it. The
    function only knows the pairs in `_TOKENIZERS`, for which both agree, and returns None for all others.
    """
    config, own = _document(folder), _document(folder, "tokenizer_config.json")
    if config is None or own is None or "auto_map" in config or "auto_map" in own:
        return None
    if "_name_or_path" in config or not (folder / "tokenizer.json").is_file():
        return None
    return _TOKENIZERS.get((config.get("model_type"), own.get("tokenizer_class")))


_TOKENIZERS: dict[tuple[Any, Any], str] = {
    ("llama", "TokenizersBackend"): "TokenizersBackend",
    ("llama", "PreTrainedTokenizerFast"): "TokenizersBackend",
    ("qwen3", "TokenizersBackend"): "TokenizersBackend",
    ("qwen3", "Qwen2Tokenizer"): "Qwen2Tokenizer",
    ("qwen2", "Qwen2Tokenizer"): "Qwen2Tokenizer",
}
"""Classes by the config's type and the class that tokenizer_config.json names."""


def _document(folder: Path, name: str = CONFIG) -> dict[str, Any] | None:
    try:
        return read_object(folder / name)
    except (OSError, PolicyError):
        return None
