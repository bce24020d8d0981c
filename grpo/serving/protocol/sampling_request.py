"""Parameters of sampling that chat completions and raw completions share: their bounds, and the `Sampling` they mean.

Both requests inherit from `SamplingRequest`, so that a parameter has the same bounds and the same error on both routes.
What only one route has, e.g. messages or a prompt, is in the module of this route.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from grpo.policy.policy import Sampling
from grpo.serving.protocol.json_bounds import at_most
from grpo.serving.protocol.request_parts import NAME_CHARACTERS, Fault, Ignored, Part

LABEL_CHARACTERS = 512
"""Maximum characters of a label or of a user's name."""
_STOP = 1024
"""Maximum characters of a text that ends a reply."""
Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=64)],
        Annotated[str, StringConstraints(max_length=LABEL_CHARACTERS)] | None,
    ],
    at_most(16),
]
"""Labels by their keys, with the bounds of OpenAI's API."""


class StreamOptions(Part):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: Ignored


class SamplingRequest(Part):
    """Parameters of sampling that chat and completions share."""

    model: str = Field(max_length=NAME_CHARACTERS)
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=16)
    stop: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    user: str | None = Field(default=None, max_length=LABEL_CHARACTERS)
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], at_most(0)] | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _is_text_or_texts(cls, value: Any) -> Any:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts[:5]):
            raise ValueError("stop is a text or a list of texts")
        if len(texts) > 4 or not all(texts):
            raise ValueError("stop has 1 to 4 texts, none empty")
        if any(len(text) > _STOP for text in texts):
            raise ValueError(f"a text has at most {_STOP} characters")
        return value

    @field_validator("presence_penalty", "frequency_penalty")
    @classmethod
    def _is_zero(cls, value: float | None) -> float | None:
        if value:
            raise ValueError(
                "send 0, because replies are sampled from the policy's own distribution, without penalties"
            )
        return value

    @model_validator(mode="after")
    def _options_are_read(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise Fault("stream_options", "stream_options are read only if stream is true")
        return self

    @property
    def with_usage(self) -> bool:
        """True if the stream is to end with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end the reply."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def to_sampling(
        self,
        index: int,
        *,
        temperature: float,
        max_new_tokens: int,
        seed: int,
        top_k: int = 0,
        top_logprobs: int = 0,
        grammar: str | None = None,
        completes: bool = False,
    ) -> Sampling:
        """Sampling of choice `index`. Its seed is derived from `seed`, the seed of choice 0.

        `temperature` is used if the request has none.
        """
        first = Sampling(
            temperature=temperature if self.temperature is None else self.temperature,
            max_new_tokens=max_new_tokens,
            seed=seed,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=top_k,
            top_logprobs=top_logprobs,
            grammar=grammar,
            completes=completes,
        )
        return replace(first, seed=first.turn_seed(index)) if index else first

    def to_seed(self) -> int | None:
        """Seed as an unsigned number of 64 bits. None if the request has none."""
        return None if self.seed is None else self.seed % 2**64
