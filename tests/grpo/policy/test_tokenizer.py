"""Bytes of tokens."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from grpo.policy.tokenizer import load_tokenizer, token_bytes
from tests.places import DESK_MODEL


def test_tokens_of_a_character_have_its_bytes():
    """The desk's vocabulary has no emoji, so that one is four tokens of a byte each."""
    tokenizer = load_tokenizer(DESK_MODEL)
    ids = tokenizer.encode("é😀 lamp", add_special_tokens=False)
    parts = [token_bytes(tokenizer, token_id) for token_id in ids]
    assert b"".join(parts) == "é😀 lamp".encode()
    assert b"\xf0" in parts


@pytest.mark.parametrize(("name", "content"), [("<0xF0>", b"\xf0"), ("<0x41>", b"A"), ("▁a", b" a")])
def test_bytes_of_a_vocabulary_with_byte_fallback(name: str, content: bytes):
    """As of Llama and Gemma."""
    backend = Tokenizer(models.BPE({"<0xF0>": 0, "<0x41>": 1, "▁a": 2}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert token_bytes(tokenizer, tokenizer.convert_tokens_to_ids(name)) == content
