"""What the rollout needs of a model: to speak the next turn, and to say how likely each of its tokens was.

Some backends read tokens (transformers, vLLM, `/v1/completions`), others read messages (`/v1/chat/completions`, a
script). A `Prompt` holds both, each takes what it can read, and all answer in tokens of the renderer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from grpo.errors import ConfigError
from grpo.messages import Message
from grpo.renderers.chat_template import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to draw one turn. A rollout draws at a plain temperature, so that the log-probabilities are the policy's."""

    temperature: float
    """0 takes the likeliest token."""
    max_new_tokens: int
    seed: int
    top_p: float = 1.0
    """Share of the probability that is drawn from, likeliest tokens first."""
    top_k: int = 0
    """How many of the likeliest tokens are drawn from; 0 is all."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ConfigError(f"sampling temperature {self.temperature} must be at least 0")
        if not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ConfigError(f"top_p {self.top_p} must be above 0 and at most 1, top_k {self.top_k} at least 0")
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens {self.max_new_tokens} must be at least 1")

    @property
    def unfiltered(self) -> bool:
        """Whether nothing is cut off; else what is drawn has no log-probability to train on."""
        return self.temperature > 0 and self.top_p == 1 and self.top_k == 0

    def uniforms(self, turn: int) -> NDArray[np.float64]:
        """The random numbers of this sample's turn: its own generator, whatever else is in the batch."""
        bits = np.random.Philox(key=np.array([self.seed, turn], dtype=np.uint64))
        return np.random.Generator(bits).random(self.max_new_tokens)

    def turn_seed(self, turn: int) -> int:
        """Seed of this sample's turn, of 63 bits, for a backend that draws its own random numbers."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}\0{turn}".encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a policy is asked to answer, in tokens and in words."""

    new_ids: Sequence[int]
    """Tokens after everything that the session has read and said so far."""
    messages: tuple[Message, ...] = ()
    """The whole conversation as the agent sees it, system prompt first."""
    on_token: Callable[[int], None] | None = None
    """Told each token as it is drawn, by backends that draw token by token; the others are silent until the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The tokens of one turn, stop token included, with the log-probability that each was drawn with."""

    token_ids: list[int]
    logprobs: list[float] | None
    """None where the backend cannot tell: the turn can be judged, not trained on."""
    stop: Literal["stop", "length"]
    message: Message | None = None
    """What was said, where the backend speaks messages; else it is read from the tokens."""


class Session(Protocol):
    """One conversation in flight; what it has already read is kept between its turns."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Read what is new in the prompt, then speak. Cancelled, it gives its place in the batch back."""
        ...

    def close(self) -> None:
        """Give the place in the batch back."""
        ...


class Sampler(Protocol):
    """Serves many sessions at once."""

    def open(self) -> Session:
        """Begin a conversation."""
        ...


class Policy(Protocol):
    """A version of the model, named by the hash of its weights."""

    @property
    def hash(self) -> str:
        """Digest of the weights; of the address where the weights are not known."""
        ...

    @property
    def max_context(self) -> int:
        """Most tokens that it can read."""
        ...

    def sampler(self, *, concurrency: int, renderer: Renderer) -> AbstractAsyncContextManager[Sampler]:
        """Serve generation inside the running event loop; `renderer` knows the tools and encodes what is said."""
        ...
