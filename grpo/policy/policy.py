"""Policy interface: generate a turn and return the log-probability of each token.

Some backends read tokens (transformers, vLLM, `/v1/completions`), others read messages (`/v1/chat/completions`, a
script). A `Prompt` has both, and all backends return tokens of the renderer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from grpo.config.base import LEAST_TEMPERATURE
from grpo.errors import ConfigError
from grpo.messages import Message
from grpo.renderers.chat_template import Renderer
from grpo.trajectories import PolicySpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling settings of one turn. Rollouts set only the temperature, so log-probabilities are the policy's."""

    temperature: float
    """Below `LEAST_TEMPERATURE` decoding is greedy."""
    max_new_tokens: int
    seed: int
    top_p: float = 1.0
    """Nucleus probability mass."""
    top_k: int = 0
    """Number of likeliest tokens to sample from, 0 for all."""
    top_logprobs: int = 0
    """Number of likeliest tokens that are returned, with log-probabilities, for each sampled token."""
    grammar: str | None = None
    """Grammar that the tokens follow, see `grpo.policy.grammars`. Log-probabilities are then relative to the tokens
    that the grammar allows, because the turn is sampled from that distribution. Nothing is trained on them."""
    completes: bool = False
    """Complete a reply before its limit of tokens cuts it off, see `grpo.policy.reply_ends`. It still ends with
    `length`. Not for calls of tools, because a call with an argument that was cut off would be made."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"sampling temperature {self.temperature} must be a number of at least 0")
        if not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ConfigError(f"top_p {self.top_p} must be above 0 and at most 1, top_k {self.top_k} at least 0")
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens {self.max_new_tokens} must be at least 1")
        if self.top_logprobs < 0:
            raise ConfigError(f"top_logprobs {self.top_logprobs} must be at least 0")

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is always taken."""
        return self.temperature < LEAST_TEMPERATURE

    @property
    def unfiltered(self) -> bool:
        """True without top-p, top-k and greedy decoding. Only such log-probabilities can be trained on."""
        return not self.greedy and self.top_p == 1 and self.top_k == 0

    def refuse_unread(self, backend: str) -> None:
        """Raise `ConfigError` if `top_logprobs` or `grammar` is set, for a backend that has neither."""
        if self.top_logprobs:
            raise ConfigError(f"top_logprobs {self.top_logprobs}: {backend} returns no log-probabilities. Set it to 0")
        if self.grammar is not None:
            raise ConfigError(f"{backend} does not support a grammar. Sample from a model of this process")

    def uniforms(self, turn: int) -> NDArray[np.float64]:
        """Random numbers of this sample's turn, from its own generator, so that they do not depend on the batch."""
        bits = np.random.Philox(key=np.array([self.seed, turn], dtype=np.uint64))
        return np.random.Generator(bits).random(self.max_new_tokens)

    def turn_seed(self, turn: int) -> int:
        """Seed of this sample's turn, 63 bits, for a backend with its own random number generator."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}\0{turn}".encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """Token of a turn in progress, with log-probabilities at the turn's temperature (at 1, for greedy turns).

    They are computed before top-p, top-k and greedy decoding, over the tokens that a grammar allows.
    """

    id: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()
    """(token, log-probability) of the likeliest tokens, likeliest first. Empty without `Sampling.top_logprobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Prompt of one turn, as tokens and as messages."""

    new_ids: Sequence[int]
    """Prompt tokens that the session has not read or generated yet."""
    messages: tuple[Message, ...] = ()
    """The whole conversation, system prompt first."""
    on_token: Callable[[SampledToken], bool | None] | None = None
    """Callback for each sampled token, if the backend generates token by token. If it returns True, the turn ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Generated tokens of one turn, stop token included, with their sampler log-probabilities."""

    token_ids: list[int]
    logprobs: list[float] | None
    """None if the backend does not return them. The turn can then be scored, but not trained on."""
    stop: Literal["stop", "length", "callback"]
    """The stop token, a limit, or `Prompt.on_token` ended the turn."""
    message: Message | None = None
    """The message, if the backend returns messages. Otherwise it is parsed from the tokens."""
    top_logprobs: list[tuple[tuple[int, float], ...]] | None = None
    """`SampledToken.top_logprobs` of each token; None without `Sampling.top_logprobs`."""
    cached_tokens: int = 0
    """Prompt tokens that were not read again, because the backend kept their keys and values from another session."""


class Session(Protocol):
    """One conversation in progress. Its KV cache is kept between turns."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Read the new prompt tokens, then generate. If the call is cancelled, the slot in the batch is released."""
        ...

    def close(self) -> None:
        """Release the slot in the batch."""
        ...


@runtime_checkable
class ForkableSession(Session, Protocol):
    """A conversation of tokens, which other conversations can begin with."""

    def fork(self, tokens: int) -> ForkableSession:
        """Start another conversation with the first `tokens` tokens that this one has read or generated.

        Call it between two turns. The tokens are not computed again if the backend has kept their keys and values.
        """
        ...


class Sampler(Protocol):
    """Generation for many concurrent sessions."""

    def open(self) -> Session:
        """Start a conversation."""
        ...


class ContinuousSession(Session, Protocol):
    """A conversation in progress that may change its policy."""

    @property
    def policy_spans(self) -> Sequence[PolicySpan]:
        """Policies that have generated its tokens, or generate its turn in progress."""
        ...


class ContinuousSampler(Protocol):
    """Generation with the newest version of a policy, which changes while conversations go on."""

    def open(self) -> ContinuousSession:
        """Start a conversation."""
        ...

    async def prepare_policy(self, policy: Any) -> None:
        """Make the next version ready, while the present one generates. Versions come from one inference backend."""
        ...

    def replace_policy(self, policy: Any) -> None:
        """Generate further tokens with a version that was prepared, from the next pass or the next turn on."""
        ...


@dataclass(frozen=True, slots=True)
class SessionFactory:
    """Sampler of a backend with independent sessions, which share only a client or an engine."""

    open: Callable[[], Session]


class Policy(Protocol):
    """A policy version, identified by the hash of its weights."""

    @property
    def hash(self) -> str:
        """Digest of the weights, or of the address if the weights are unknown."""
        ...

    @property
    def max_context(self) -> int:
        """Maximum number of tokens in the context."""
        ...

    def sampler(self, *, concurrency: int, renderer: Renderer) -> AbstractAsyncContextManager[Sampler]:
        """Serve generation inside the running event loop. `renderer` knows the tools and encodes replies."""
        ...
