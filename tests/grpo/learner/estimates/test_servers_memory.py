"""Memory of rollout servers, worked out by hand for a small Llama."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest
from transformers import LlamaConfig

from grpo.config.serving import EngineSettings
from grpo.learner.estimates.model_sizes import ModelSizes
from grpo.learner.estimates.servers_memory import free_memory, servers_memory

CONFIG = LlamaConfig(
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=100,
    vocab_size=10,
)


def _sizes(config: LlamaConfig = CONFIG) -> ModelSizes:
    return ModelSizes(config=config, parameters=1000, trained=1000, trained_tensors=1)


def test_a_server_holds_two_versions_and_the_cache_of_its_share_of_the_episodes():
    """Weights: 2 × 1,000 × 4. Keys and values of a token: 2 × 4 × 1 in each of 2 layers, 64 bytes.

    Three servers share 7 episodes of 50 tokens, so one may have 3 of them: 3 × 50 × 64 = 9,600.
    """
    memory = servers_memory(_sizes(), 3, episodes=7, max_context=50)
    assert (memory.weights, memory.cache, memory.peak) == (8_000, 9_600, 17_600)


def test_conversations_without_a_slot_are_kept_up_to_a_bound():
    """64 slots of 100 tokens, which is the limit of the model, and at most 1 GiB for all other conversations."""
    engine = EngineSettings()
    memory = servers_memory(_sizes(), 1, episodes=10_000_000, max_context=200)
    assert memory.cache == engine.concurrency * 100 * 64 + engine.prefix_cache_bytes


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [
        (None, None, (3_000, 8_000)),
        (None, 100, (3_000, 8_000)),
        (5_000, None, (3_000, 8_000)),
        (9_000, 100, (3_000, 8_000)),
        (5_000, 4_000, (1_000, 5_000)),
        (5_000, 100, (3_000, 5_000)),
    ],
)
def test_the_memory_of_a_container_is_its_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, used: int | None, expected: tuple[int, int]
):
    """3,000 of the 8,000 bytes of the machine are free, and never more. A limit above 8,000 bounds nothing."""
    numbers = {"memory.max": limit, "memory.current": used}
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=8_000, available=3_000))
    monkeypatch.setattr("grpo.learner.estimates.servers_memory._kernel_number", lambda file: numbers[file.name])
    assert free_memory() == expected
