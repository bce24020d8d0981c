"""Chat templates that TRL ships, with a tiny byte-level tokenizer that has the tokens of each."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_MARK = re.compile(r"<[|｜/]?[^<>\s'\"{}+=(),]{1,40}[|｜]?>|\[/?[A-Z_]+\]")
_MERGES = (("Ċ", "Ċ"), ("Ġ", "Ġ"), ("Ġ", "t"), ("h", "e"), ("Ċ", "Ġ"))
"""Tokens that may span the end of a template's text and the beginning of a user's."""
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Words of Llama 3's and Qwen's tokenizers, in which lines that end together are one word."""
_ENDS = {
    "llama3": "<|eot_id|>",
    "cohere": "<|END_OF_TURN_TOKEN|>",
    "deepseek": "<｜end▁of▁sentence｜>",
    "gptoss": "<|return|>",
    "phi": "<|endoftext|>",
    "glm": "<|endoftext|>",
    "qwen": "<|im_end|>",
    "nemotron": "<|im_end|>",
    "lfm": "<|im_end|>",
}


def names() -> list[str]:
    """Names of the templates."""
    return sorted(path.stem for path in _folder().glob("*.jinja"))


def template(name: str) -> str:
    """Text of a template."""
    return (_folder() / f"{name}.jinja").read_text(encoding="utf-8")


def tokenizer(
    source: str, *, end: str = "<eos>", special: bool = True, more: tuple[str, ...] = ()
) -> PreTrainedTokenizerFast:
    """Byte-level tokenizer with the tokens that a template writes, special or merely added, and `more` special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = [first + second for first, second in _MERGES]
    vocabulary = {token: index for index, token in enumerate([*alphabet, *merged])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=list(_MERGES)))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    marks = dict.fromkeys(_MARK.findall(source))
    backend.add_special_tokens([AddedToken(mark, normalized=False) for mark in ("<bos>", "<eos>", end, *more)])
    backend.add_tokens([AddedToken(mark, normalized=False, special=special) for mark in marks if mark != end])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", eos_token=end)
    made.chat_template = source
    return made


@cache
def of_family(name: str, *, special: bool = True) -> PreTrainedTokenizerFast:
    """Tokenizer with a template of TRL and its family's end token."""
    end = next((end for family, end in _ENDS.items() if name.startswith(family)), "<eos>")
    return tokenizer(template(name), end=end, special=special)


def _folder() -> Path:
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "chat_templates"
