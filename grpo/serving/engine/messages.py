"""Messages between a server and its engine processes, which need no PyTorch, see `grpo.serving.engine.process`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedTokenizerBase

from grpo.policy.policy import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Load of an engine, and its counters since the start."""

    running: int = 0
    """Turns in the batch."""
    waiting: int = 0
    """Turns that wait for a slot."""
    kv_tokens: int = 0
    """Tokens with keys and values in slots."""
    kv_capacity: int = 0
    """Tokens that the slots can hold before they grow."""
    prefix_cache_bytes: int = 0
    """Bytes of the keys and values of closed sessions."""
    prefix_queries: int = 0
    """Prompt tokens of turns. Each is looked up once."""
    prefix_hits: int = 0
    """Prompt tokens that were not read again."""
    tokens_processed: int = 0
    """Tokens of all forward passes."""
    tokens_generated: int = 0
    turns_admitted: int = 0
    queue_s: float = 0.0
    """Total time that admitted turns have waited for a slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Answer of a process after it has loaded its weights."""

    policy_hash: str
    max_context: int
    vocabulary: int
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """Answer of a process that ends because it could not load its weights."""

    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Settings of the sampler."""

    stop_ids: frozenset[int]
    concurrency: int
    prefill_chunk: int
    prefix_cache_bytes: int
    threads: int | None


@dataclass(frozen=True, slots=True)
class Submit:
    """Generate a turn."""

    turn: int
    """Number that identifies the turn when its tokens come back."""
    ids: Sequence[int]
    """All tokens of its conversation."""
    index: int
    """Number of earlier turns of its session, which is part of the seed."""
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Cancel:
    """Take a turn out of the batch before the next pass."""

    turn: int


@dataclass(frozen=True, slots=True)
class Scale:
    """Change the number of turns in the batch."""

    concurrency: int


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a turn because of a stop token, a limit or its callback."""

    turn: int
    stop: Literal["stop", "length", "callback"]


@dataclass(frozen=True, slots=True)
class Failed:
    """End of a turn because of an error."""

    turn: int
    error: str
    trace: str
    is_grammar: bool = False
    """True if the turn's grammar takes more work than allowed, which is the fault of the request."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Tokens of a forward pass, and the turns that ended with it."""

    begun: Sequence[tuple[int, int]]
    """(turn, prompt tokens that were not read again) for each turn that has its first token in this pass."""
    tokens: Sequence[tuple[int, int, float, tuple[tuple[int, float], ...]]]
    """(turn, token, log-probability, likeliest tokens)."""
    ended: Sequence[Ended | Failed]
    stats: EngineStats
