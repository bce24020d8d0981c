"""A new, untrained chat model: byte-level BPE with digits apart, a chat template, a small Llama."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grpo.messages import TOOL_CALL_CLOSE, TOOL_CALL_OPEN

END, PAD = "<|end|>", "<|pad|>"
CONTROL_TOKENS = (
    PAD, END, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", TOOL_CALL_OPEN, TOOL_CALL_CLOSE,
)  # fmt: skip

CHAT_TEMPLATE = """\
{%- if messages[0].role != 'system' and tools %}{{ '<|system|>' }}{% endif -%}
{%- macro signatures() -%}
{%- for tool in tools or [] %}{{ ' ' + tool.function.name + '(' }}\
{%- for name in tool.function.parameters.properties %}{{ name }}{{ ', ' if not loop.last }}{% endfor %}{{ ')' }}\
{%- endfor %}
{%- endmacro -%}
{%- if messages[0].role != 'system' and tools %}{{ signatures() + '<|end|>' }}{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{ '<|assistant|>' }}
{%- generation -%}
{{ message.content }}
{%- for call in message.tool_calls or [] -%}
{{ '<tool_call>' }}{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}{{ '</tool_call>' }}
{%- endfor -%}
{{ '<|end|>' }}
{%- endgeneration -%}
{%- elif message.role == 'system' -%}
{{ '<|system|>' + message.content + signatures() + '<|end|>' }}
{%- else -%}
{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif -%}
"""


def train_tokenizer(texts: Iterable[str], *, vocabulary: int, phrases: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on `texts`; every digit is a token of its own, so numbers can be copied.

    Each of `phrases` becomes one token: the fixed parts of JSON that a model writes and reads all the time.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[token for token in CONTROL_TOKENS if token not in (PAD, END)],
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
    )


def init_model(
    tokenizer: PreTrainedTokenizerFast,
    *,
    hidden_size: int,
    layers: int,
    heads: int,
    kv_heads: int,
    mlp_size: int,
    seed: int,
) -> LlamaForCausalLM:
    """A Llama with random weights and tied embeddings for this tokenizer, in float32."""
    torch.manual_seed(seed % 2**64)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=mlp_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)
