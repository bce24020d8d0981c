"""Tokenizers of model folders. The tokenizer of a plain model is read without PyTorch."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.errors import PolicyError
from grpo.policy.model_files import CHAT_TEMPLATE, first_line, read_object
from grpo.policy.plain_models import tokenizer_class

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTE = re.compile("<0x([0-9A-F]{2})>")


def load_tokenizer(folder: Path, *, chat_template: str | None = None) -> PreTrainedTokenizerBase:
    """Load a folder's tokenizer. If `chat_template` is given, it replaces the template in the folder.

    Raises `PolicyError` if the folder has no tokenizer that can be read.
    """
    import transformers

    known = tokenizer_class(folder)
    try:
        loading = getattr(transformers, known or "AutoTokenizer")
        tokenizer: PreTrainedTokenizerBase = loading.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # tokenizers raises Exception itself
        raise PolicyError(f"no tokenizer in {folder}: {first_line(error)}. Add tokenizer.json") from error
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    elif tokenizer.chat_template is None and (folder / CHAT_TEMPLATE).is_file():
        tokenizer.chat_template = read_object(folder / CHAT_TEMPLATE).get("chat_template")
    return tokenizer


def token_bytes(tokenizer: PreTrainedTokenizerBase, token_id: int) -> bytes:
    """Bytes that a token adds to a text in UTF-8. A token may have a part of a character, and a space at its beginning.

    Vocabularies write them in GPT-2's alphabet of bytes, or with `▁` for a space and `<0xF0>` for a byte.
    """
    name = tokenizer.convert_ids_to_tokens(token_id)
    if isinstance(name, str) and "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder):
        alphabet = _byte_alphabet()
        if set(name) <= alphabet.keys():
            return bytes(alphabet[character] for character in name)
    elif isinstance(name, str) and (match := _BYTE.fullmatch(name)) is not None:
        return bytes.fromhex(match[1])
    elif isinstance(name, str) and "▁" in name:
        return name.replace("▁", " ").encode()
    text: str = tokenizer.decode([token_id])
    return text.encode()


@cache
def _byte_alphabet() -> dict[str, int]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}


def check_same_tokenizer(policy: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, *, address: str) -> None:
    """Raise `PolicyError` if token ids mean something else to the teacher at `address` than to the policy."""
    own, other = policy.get_vocab(), teacher.get_vocab()
    if own == other:
        return
    differing = sorted(token for token in own.keys() | other.keys() if own.get(token) != other.get(token))
    first = differing[0]
    raise PolicyError(
        f"the teacher {address} has another tokenizer than the policy: {len(differing):,} tokens differ, for example "
        f"{first!r}, which is {other.get(first, 'absent')} there and {own.get(first, 'absent')} here. A teacher judges "
        "the policy's own tokens, so choose one of the same model family"
    )
