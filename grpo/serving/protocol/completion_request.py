"""Requests of OpenAI's completions API with the fields of vLLM that a policy needs: token ids in, token ids out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from grpo.serving.protocol.request_parts import TAG
from grpo.serving.protocol.sampling_request import SamplingRequest

MOST_PROMPT_TOKENS = 1_000_000
DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Tag(f"{TAG}text")]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True), Tag(f"{TAG}ids")]


def only_prompt(value: Any) -> Any:
    """The prompt of a list with one prompt. Any other value stays unchanged."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list) else value


def _text_or_ids(value: Any) -> str:
    return f"{TAG}text" if isinstance(value, str) else f"{TAG}ids"


class CompletionRequest(SamplingRequest):
    """Body of `POST /v1/completions`."""

    stream: Literal[False] = False
    prompt: Annotated[Text | TokenIds, Discriminator(_text_or_ids)]
    """Text, or token ids. If it is a list with one text or one list of token ids, this one is the prompt."""
    logprobs: int | None = Field(default=None, ge=0, le=20)
    """Number of likeliest tokens to return with each token, with their log-probabilities."""
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    """Number of likeliest tokens to sample from. -1 and 0 mean all."""
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=64)] | None = None
    """Tokens that end the text, in addition to the model's own."""
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    """Write the tokens of `logprobs` as e.g. `token_id:5`."""
    add_special_tokens: bool = True
    """Add the special tokens with which the tokenizer begins a text."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    echo: Literal[False] | None = None
    suffix: None = None
    best_of: Literal[1] | None = None
    min_p: float | None = Field(default=None, ge=0, le=0)
    repetition_penalty: float | None = Field(default=None, ge=1, le=1)

    @field_validator("prompt", mode="before")
    @classmethod
    def _is_one_prompt(cls, value: Any) -> Any:
        value = only_prompt(value)
        if isinstance(value, list):
            if not 1 <= len(value) <= MOST_PROMPT_TOKENS:
                raise ValueError(f"a prompt has 1 to {MOST_PROMPT_TOKENS} tokens")
            if any(isinstance(token, str | list) for token in value):
                raise ValueError("send one prompt in each request, a text or a list of token ids")
        elif not isinstance(value, str):
            raise ValueError("a prompt is a text or a list of token ids")
        return value
