"""What the rollout needs of a model: to continue token ids and to say how likely each new token was."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from grpo.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to draw one turn. Plain temperature only: nothing is cut off, so the log-probabilities are the policy's."""

    temperature: float
    max_new_tokens: int
    seed: int

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ConfigError(f"sampling temperature {self.temperature} must be above 0")
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens {self.max_new_tokens} must be at least 1")

    def uniforms(self, turn: int) -> NDArray[np.float64]:
        """The random numbers of this sample's turn: its own generator, whatever else is in the batch."""
        bits = np.random.Philox(key=np.array([self.seed, turn], dtype=np.uint64))
        return np.random.Generator(bits).random(self.max_new_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The tokens of one turn, stop token included, with the log-probability that each was drawn with."""

    token_ids: list[int]
    logprobs: list[float]
    stop: Literal["stop", "length"]


class Session(Protocol):
    """One conversation in flight; what it has already read is kept between its turns."""

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Read `new_ids` after everything read and said so far, then speak."""
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
        """Digest of the weights."""
        ...

    @property
    def max_context(self) -> int:
        """Most tokens that it can read."""
        ...

    def sampler(self, *, concurrency: int) -> AbstractAsyncContextManager[Sampler]:
        """Serve generation inside the running event loop."""
        ...
