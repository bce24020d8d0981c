"""Answers of OpenAI's protocol, with the fields that this project reads.

The `openai` package builds its answers without a look at their types, so a server that sends a number for a text breaks
the code that reads it. Other fields are ignored, because servers add their own.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
LARGEST_COUNT = 10**12
"""Token counts above this are not believed."""


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


def _count(value: Any) -> Any:
    """Number of tokens, or None for what is not one, so that an answer is used although its usage is wrong."""
    return value if type(value) is int and 0 <= value <= LARGEST_COUNT else None


TokenCount = Annotated[int | None, BeforeValidator(_count)]


class Usage(_Answer):
    """Tokens that the server reports. None if it reports none."""

    prompt_tokens: TokenCount = None
    completion_tokens: TokenCount = None


class CalledFunction(_Answer):
    """Name and arguments of a call, as the model wrote them."""

    name: str
    arguments: str


class Call(_Answer):
    """Tool call."""

    type: str = "function"
    function: CalledFunction | None = None
    """None for a call of another type."""


class ReplyMessage(_Answer):
    """Reply of a chat model."""

    content: str | list[Any] | None = None
    """Text. A list of parts cannot be read as a text, but its tokens are counted."""
    refusal: Annotated[str | None, BeforeValidator(lambda value: value if isinstance(value, str) else None)] = None
    """Text with which the model has refused to answer. It is the reply if `content` is empty."""
    tool_calls: list[Call] | None = None


class ChatChoice(_Answer):
    """One reply."""

    message: ReplyMessage
    finish_reason: str | None


class ChatAnswer(_Answer):
    """Answer of `/chat/completions`."""

    choices: Annotated[list[ChatChoice], Field(min_length=1)]
    usage: Annotated[Usage, BeforeValidator(lambda value: value if isinstance(value, dict) else {})] = Usage()


class TokenLogprobs(_Answer):
    """Log-probabilities per token."""

    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class TextChoice(_Answer):
    """One completion, with vLLM's token ids."""

    text: str
    finish_reason: str | None
    token_ids: list[TokenId] | None = None
    prompt_token_ids: list[TokenId] | None = None
    logprobs: Annotated[TokenLogprobs, BeforeValidator(lambda value: {} if value is None else value)] = TokenLogprobs()


class TextAnswer(_Answer):
    """Answer of `/completions`."""

    choices: Annotated[list[TextChoice], Field(min_length=1)]
