"""Sizes of prompts: which tokenizers have a bound, and texts that are counted in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.messages import Message, ToolCall
from grpo.renderers.chat_template import Renderer
from grpo.serving.protocol.api_errors import APIError
from grpo.serving.requests.prompt_sizes import PIECE, PromptSize, check_without_user, count_tokens, longest_token
from tests.grpo.renderers.published import of_family
from tests.grpo.serving.chat_servers import CLERK

BYTES = {character: id_ for id_, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
FALLBACK = {f"<0x{byte:02X}>": byte for byte in range(256)}


def tokenizer(model: Any, *, before: Any = None, normalizer: Any = None) -> PreTrainedTokenizerFast:
    backend = Tokenizer(model)
    if before is not None:
        backend.pre_tokenizer = before
    if normalizer is not None:
        backend.normalizer = normalizer
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def bytes_model() -> models.BPE:
    """All bytes, and one token of two."""
    return models.BPE(vocab={**BYTES, "ab": 256}, merges=[("a", "b")])


def test_a_token_of_the_clerk_has_at_most_45_characters():
    """Its longest word with the white space before it; 1,024 such tokens have 46,080."""
    assert longest_token(AutoTokenizer.from_pretrained(CLERK)) == 45


@pytest.mark.parametrize(
    ("made", "longest"),
    [
        (tokenizer(bytes_model(), before=pre_tokenizers.ByteLevel()), 2),
        (tokenizer(bytes_model(), before=pre_tokenizers.ByteLevel(), normalizer=normalizers.NFC()), 8),
        (tokenizer(bytes_model(), before=pre_tokenizers.ByteLevel(), normalizer=normalizers.Strip()), None),
        (tokenizer(bytes_model(), before=pre_tokenizers.ByteLevel(), normalizer=normalizers.Replace("  ", "")), None),
        (tokenizer(bytes_model(), before=pre_tokenizers.ByteLevel(), normalizer=normalizers.Replace(" ", "▁")), 2),
        (
            tokenizer(
                bytes_model(), before=pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel()])
            ),
            None,
        ),
        (
            tokenizer(
                bytes_model(),
                before=pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()]),
            ),
            None,
        ),
        (tokenizer(models.BPE(vocab={"a": 0, "<unk>": 1}, merges=[], unk_token="<unk>", fuse_unk=True)), None),
        (tokenizer(models.BPE(vocab=FALLBACK, merges=[], byte_fallback=True)), 6),
        (tokenizer(models.WordPiece(vocab={"a": 0, "[UNK]": 1}, unk_token="[UNK]")), None),
    ],
)
def test_a_bound_is_that_of_tokenizers_that_keep_every_character(made: PreTrainedTokenizerFast, longest: int | None):
    """Composed characters count four times; white space that is dropped and words that are unknown have no bound."""
    assert longest_token(made) == longest


class CountingRenderer(Renderer):
    """Renderer with a token for each character, which notes the lengths that it counts."""

    def __init__(self) -> None:
        self.counted: list[int] = []

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """See `Renderer`."""
        self.counted.append(
            sum(len(message.content) + sum(map(len, map(str, message.tool_calls))) for message in messages)
        )
        return self.counted[-1]


def count(renderer: Renderer, messages: Sequence[Message], most: int, *, fits: bool = True) -> int:
    return count_tokens(renderer, messages, known=10, most=most, fits=fits)


def test_a_long_text_is_counted_until_it_is_surely_too_long():
    """Of ten pieces three are read: the third makes it more than twice the tokens that fit."""
    renderer = CountingRenderer()
    with pytest.raises(APIError, match="more than 196618 tokens") as error:
        count(renderer, [Message(role="user", content="x" * (10 * PIECE))], PIECE + 100)
    assert renderer.counted == [PIECE] * 3
    assert (error.value.status, error.value.code, error.value.param) == (400, "context_length_exceeded", "messages")


def test_short_messages_are_counted_together_and_long_ones_in_pieces():
    """30 characters in one batch, then a long message in two pieces and its call in one."""
    renderer = CountingRenderer()
    call = ToolCall(name="f", arguments={})
    long = Message(role="assistant", content="y" * (PIECE + 1), tool_calls=(call,))
    messages = [*[Message(role="user", content="x" * 10)] * 3, long]
    total = 30 + PIECE + 1 + len(str(call))
    assert count(renderer, messages, 2 * PIECE) == total
    assert sorted(renderer.counted) == sorted([30, PIECE, 1, len(str(call))])


def test_what_an_agent_may_shorten_is_refused_later_than_what_has_to_fit():
    messages = [Message(role="user", content="x" * 95)]
    with pytest.raises(APIError, match=r"has 105 tokens, and the context has 100"):
        count(CountingRenderer(), messages, 100)
    assert count(CountingRenderer(), messages, 100, fits=False) == 95


@pytest.mark.parametrize(("compresses", "most"), [(False, 100), (True, 800)])
def test_an_agent_may_shorten_eight_contexts(compresses: bool, most: int):
    """An agent that compresses a context of 100 tokens reads 800 before it is refused, whatever the server holds."""
    config = AgentConfig(model_name="clerk", enable_context_compression=compresses)
    served = SimpleNamespace(agent=MultiTurnAgent(config), policy=None, renderer=None)
    size = PromptSize(SimpleNamespace(served=served, max_context=100))  # type: ignore[arg-type]
    assert size.most == most


def test_a_conversation_without_a_user_is_refused_where_the_template_prints_none():
    """Qwen3.5 raises without one, Qwen3 prints the system message alone."""
    check_without_user(Renderer(of_family("qwen3")))
    with pytest.raises(APIError, match=r"reads no conversation without a message of the user\. Add one") as refused:
        check_without_user(Renderer(of_family("qwen3_5_nothink")))
    assert refused.value.status == 400
