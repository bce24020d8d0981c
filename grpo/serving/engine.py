"""Engine: the rollout's sampler in a thread of its own, for callers on other event loops.

    caller's loop     generate ──►            ◄── Generation          cancel ──►
    engine's loop               submit │ pass │ pass │ pass │ …                │ the slot is free before the next pass
    engine's thread     on_token is called here, after each pass

A session is a slot of the batch. What a closed session has read stays in the prefix cache, so that a server opens a
session per request, gives it all tokens of the conversation, and only those after the cached ones are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from grpo.errors import PolicyError
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.transformers.model import TransformersPolicy
from grpo.renderers.chat_template import Renderer


class EngineStopped(PolicyError):
    """The engine was stopped before the turn was generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Load of an engine, and its counters since the start."""

    running: int
    """Turns in the batch."""
    waiting: int
    """Turns that wait for a slot."""
    kv_tokens: int
    """Tokens whose keys and values are in slots."""
    kv_capacity: int
    """Tokens that the slots can hold before they grow."""
    prefix_cache_bytes: int
    """Bytes of the keys and values of closed sessions."""
    prefix_queries: int
    """Prompt tokens of first turns, each looked up once."""
    prefix_hits: int
    """Those that were not read again."""
    tokens_processed: int
    """Tokens of all forward passes."""
    tokens_generated: int


class Engine:
    """Sampler of a policy in a thread of its own; an async context manager, used by any event loop while it is open.

    `concurrency` is the number of slots, `prefill_chunk` the most prompt tokens that one forward pass reads beside the
    running turns, `prefix_cache_bytes` the most memory for the keys and values of closed sessions. A model without
    flat attention takes whole prompts and keeps nothing.
    """

    def __init__(
        self,
        policy: TransformersPolicy,
        renderer: Renderer,
        *,
        concurrency: int = 64,
        prefill_chunk: int = 128,
        prefix_cache_bytes: int = 2**28,
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(self, *exc: object) -> None:
        """End the turns in progress with `EngineStopped`, and the thread after its forward pass."""
        raise NotImplementedError

    def open(self) -> EngineSession:
        """Start a conversation."""
        raise NotImplementedError

    def stats(self) -> EngineStats:
        """Load and counters now; callable from any thread."""
        raise NotImplementedError


class EngineSession:
    """One conversation of an `Engine`, for one caller at a time."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`; `Prompt.on_token` is called on the engine's thread.

        A turn that is cancelled, or that fails, leaves the batch before the next forward pass and closes the session.
        Raises `PolicyError` for tokens outside of the vocabulary, an empty prompt and one that fills the context,
        `EngineStopped` if the engine ends, an error of the forward pass, and one of `on_token`.
        """
        raise NotImplementedError

    def close(self) -> None:
        """See `Session.close`; callable from any thread, also during a turn, which is cancelled."""
        raise NotImplementedError
