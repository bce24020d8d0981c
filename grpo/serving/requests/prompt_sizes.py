"""Sizes of prompts: a text that no context can hold is refused by its length, before it is rendered or tokenized.

A text cannot fit if it has more characters than the tokens of the context times the longest token of the vocabulary:

    context 1024 tokens, longest token 45 characters      at most 46,080 characters

This bound needs a tokenizer that keeps every character, e.g. one on bytes. If a tokenizer drops characters, or makes
one token of a long unknown word, there is no bound. Then the tokens are counted piece by piece until the text is surely
too long.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from grpo.messages import Message, Tool
from grpo.renderers.chat_template import Renderer
from grpo.serving.engine.versions import ServedVersion
from grpo.serving.protocol.api_errors import APIError, invalid_request
from grpo.serving.protocol.chat_request import ChatRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PIECE = 65_536
"""Characters that are counted at once, because some tokenizers take quadratic time on a text without white space."""
_SLACK = 2
"""A text is too long if its pieces have more than this multiple of the tokens that fit. A cut adds only few tokens."""
_SHORTENED = 8
"""Number of contexts of text that an agent may shorten to one context. Text of twice this number is surely refused."""
_COMPOSED = 4
"""Most characters that Unicode's composition joins into one."""
_KEEPING_NORMALIZERS = {"NFD", "NFKD", "Lowercase", "Prepend", "ByteLevel"}
_COMPOSING_NORMALIZERS = {"NFC", "NFKC"}
_KEEPING_PRE_TOKENIZERS = {"ByteLevel", "Digits", "Metaspace", "UnicodeScripts"}
_SPLITTING_PRE_TOKENIZERS = {"Split", "Punctuation"}


class PromptSize:
    """Bounds of what the context of a version can hold. `characters` is None if no length is surely too long."""

    def __init__(self, version: ServedVersion) -> None:
        self.tokens: int | None = None if _shortens(version) else version.max_context
        self.most = version.max_context * (1 if self.tokens is not None else _SHORTENED)
        """Tokens up to which messages are counted. It is larger if `tokens` is None: the agent may shorten them."""
        tokenizer = getattr(version.served.policy, "tokenizer", None)
        longest = None if tokenizer is None else longest_token(tokenizer)
        self.completion_characters = None if longest is None else longest * version.max_context
        self.characters = None if self.tokens is None or version.served.renderer else self.completion_characters
        self.messages = None if version.served.renderer else self.tokens
        """Most messages that fit, because a chat template prints at least one token for each. None if unknown."""


def _shortens(version: ServedVersion) -> bool:
    """Check whether the agent may leave messages out of its prompts."""
    agent = version.served.agent
    return agent.overrides_replies or bool(agent.config.memory_window or agent.config.enable_context_compression)


def longest_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Most characters that one token holds. None if the tokenizer drops characters or joins unknown ones."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    definition: dict[str, Any] = json.loads(backend.to_str())
    normalizers, pre_tokenizers = _parts(definition["normalizer"]), _parts(definition["pre_tokenizer"])
    factor = _COMPOSED if any(part["type"] in _COMPOSING_NORMALIZERS for part in normalizers) else 1
    kept = all(map(_keeps, normalizers)) and all(map(_splits, pre_tokenizers))
    if not kept or not _knows_all_bytes(definition["model"], [*normalizers, *pre_tokenizers]):
        return None
    return factor * max(map(len, tokenizer.get_vocab()))


def _parts(component: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Steps of a normalizer or pre-tokenizer."""
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    inner = component.get("normalizers") or component.get("pretokenizers") or []
    return [step for part in inner for step in _parts(part)]


def _keeps(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] == "Replace":
        pattern = normalizer["pattern"].get("String")
        return pattern is not None and len(normalizer["content"]) >= len(pattern)
    return normalizer["type"] in _KEEPING_NORMALIZERS | _COMPOSING_NORMALIZERS


def _splits(pre_tokenizer: dict[str, Any]) -> bool:
    kind = pre_tokenizer["type"]
    return kind in _KEEPING_PRE_TOKENIZERS or (
        kind in _SPLITTING_PRE_TOKENIZERS and pre_tokenizer["behavior"] != "Removed"
    )


def _knows_all_bytes(model: dict[str, Any], steps: Sequence[dict[str, Any]]) -> bool:
    """Check that a model knows every character, because it is a BPE model that has all bytes as tokens."""
    if model["type"] != "BPE":
        return False
    from tokenizers.pre_tokenizers import ByteLevel

    vocabulary = model["vocab"].keys()
    if any(step["type"] == "ByteLevel" for step in steps):
        return vocabulary >= set(ByteLevel.alphabet())
    return bool(model.get("byte_fallback")) and vocabulary >= {f"<0x{byte:02X}>" for byte in range(256)}


def _printed_characters(request: ChatRequest) -> int:
    """Characters that every prompt of a request has. White space around texts is not counted: templates may drop it."""
    calls = (call for message in request.messages for call in message.tool_calls or ())
    return sum(len(message.text.strip()) for message in request.messages) + sum(
        len(call.function.name) + len(call.function.arguments) for call in calls
    )


def check_chat_size(request: ChatRequest, sizes: Sequence[PromptSize]) -> None:
    """Raise `APIError` 400 if the number or the lengths of the messages exceed every loaded version's context."""
    count, characters = len(request.messages), _printed_characters(request)
    messages = _largest([size.messages for size in sizes])
    if messages is not None and count > messages:
        raise _too_long(f"{count} messages", f"{messages} messages fit the context of {messages} tokens at most")
    most = _largest([size.characters for size in sizes])
    if most is not None and characters > most:
        raise _too_long(f"the messages have {characters} characters", f"{most} can fit the context at most")


def check_tools_size(tools: Sequence[Tool], size: PromptSize, plain: Renderer, *, most: int) -> None:
    """Raise `APIError` 400 if the context of a version cannot hold the tools, before they are rendered.

    If the tools have more than `PIECE` characters, `plain`, a renderer without tools, counts their tokens up to `most`.
    """
    descriptions = [f"{tool.name}{tool.description}{json.dumps(tool.parameters)}" for tool in tools]
    described = sum(map(len, descriptions))
    if size.characters is not None and described > size.characters:
        counts = f"the tools have {described} characters"
        raise _too_long(counts, f"{size.characters} can fit the context at most", param="tools")
    if described > PIECE:
        texts = [Message(role="user", content=text) for text in descriptions]
        count_tokens(plain, texts, known=0, most=most, fits=False, param="tools")


def check_later_system(renderer: Renderer) -> None:
    """Raise `APIError` 400 if the chat template does not print a system message that comes after other messages."""
    if not renderer.reads_later_system:
        message = "the model's chat template reads system messages only in front. Put this one before the first turn"
        raise invalid_request(message, param="messages", code="unsupported_value")


def check_without_user(renderer: Renderer) -> None:
    """Raise `APIError` 400 if the chat template cannot print a conversation without a message of the user."""
    if not renderer.reads_no_user:
        message = "the model's chat template reads no conversation without a message of the user. Add one"
        raise invalid_request(message, param="messages", code="unsupported_value")


def _largest(bounds: Sequence[int | None]) -> int | None:
    """Largest bound. None if a version has no bound, or if no version is loaded."""
    known = [bound for bound in bounds if bound is not None]
    return max(known) if known and len(known) == len(bounds) else None


def _too_long(counts: str, bound: str, param: str = "messages") -> APIError:
    return invalid_request(f"{counts}, and {bound}. Shorten the request", param=param, code="context_length_exceeded")


def count_tokens(
    renderer: Renderer, messages: Sequence[Message], *, known: int, most: int, fits: bool, param: str = "messages"
) -> int:
    """Count the tokens of the messages' texts, which come after `known` other tokens.

    Raises `APIError` 400 with `param` as soon as all these tokens are surely more than `most`. With `fits`, any number
    above `most` is refused. Without it, the agent may still shorten the messages.
    """
    total = known
    for batch in _pieces(messages):
        total += renderer.count_tokens(batch)
        if total > _SLACK * most:
            raise _too_long(f"the text has more than {total} tokens", f"{most} fit", param)
    if fits and total > most:
        raise _too_long(f"the conversation has {total} tokens", f"the context has {most}", param)
    return total - known


def _pieces(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Messages in batches of about `PIECE` characters. The texts of a longer message are cut into pieces."""
    batch: list[Message] = []
    size = 0
    for message in messages:
        texts = (message.content, *map(str, message.tool_calls))
        length = sum(map(len, texts))
        if length > PIECE:
            for text in texts:
                for start in range(0, len(text), PIECE):
                    yield [Message(role="user", content=text[start : start + PIECE])]
            continue
        batch.append(message)
        size += length
        if size > PIECE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
