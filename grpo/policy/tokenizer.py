"""Tokenizers of model folders. The tokenizer of a plain model is read without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grpo.errors import PolicyError
from grpo.policy.model_files import CHAT_TEMPLATE, first_line, read_object
from grpo.policy.plain_models import tokenizer_class

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
