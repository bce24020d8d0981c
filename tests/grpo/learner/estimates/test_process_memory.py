"""Memory of one process of an update, by hand and against the tensors of a sharded model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from grpo.config.training import LoraSettings, TrainingSettings
from grpo.learner.estimates.memory import MemoryEstimate
from grpo.learner.estimates.model_sizes import ModelSizes
from grpo.learner.estimates.process_memory import largest_unit, process_memory
from grpo.policy.transformers.dtype import Dtype
from grpo.policy.transformers.model import load

SHARDED = {"sharding": "sharded", "processes": 2, "nodes": 2}


def _sizes(*, tied: bool = True) -> ModelSizes:
    """1,000 weights: an embedding of 20 × 10, once or twice, and four layers."""
    config = SimpleNamespace(vocab_size=20, hidden_size=10, num_hidden_layers=4, tie_word_embeddings=tied)
    config.get_text_config = lambda: config
    return ModelSizes(config=cast("Any", config), parameters=1000, trained=1000, trained_tensors=5)


def _estimate(**changes: int) -> MemoryEstimate:
    """Two copies, and moments with the steps of five tensors."""
    sizes = {"weights": 8000, "gradients": 4000, "optimizer": 8020, "activations": 500, "cache": 0, **changes}
    return MemoryEstimate(parameters=1000, trained=1000, copies=2, **sizes)


def test_a_sharded_process_holds_a_quarter_and_the_gathered_units():
    """Four processes: (8000 + 4000 + 8020) / 4 = 5005 bytes; five copies of 200 weights; a quarter of 8000 to load."""
    memory = process_memory(_estimate(), _sizes(), TrainingSettings(**SHARDED))
    assert (memory.processes, memory.state, memory.buffers, memory.load) == (4, 5005, 4000, 2000)
    assert memory.peak == 5005 + 4000 + 500
    line = memory.describe(lambda size: f"{size} B")
    assert line == (
        "memory of each of 4 processes of an update: 9505 B at its peak, its share of weights, gradients and optimizer "
        "5005 B, buffers 4000 B, and activations, or 2000 B while it loads"
    )


def test_a_replicated_process_holds_everything_and_sends_its_gradients():
    """20020 bytes, and a flat copy of the gradients, however many processes there are."""
    for processes in (2, 8):
        memory = process_memory(_estimate(), _sizes(), TrainingSettings(processes=processes))
        assert (memory.state, memory.buffers, memory.load) == (20020, 4000, 8000)


def test_a_sharded_teacher_adds_its_share_and_its_largest_unit():
    """(8000 + 4000 + 4000 + 8020) / 4 = 6005 bytes, and 200 weights more in the buffers: 4000 + 800."""
    memory = process_memory(_estimate(weights=12000), _sizes(), TrainingSettings(**SHARDED), teacher=_sizes())
    assert (memory.state, memory.buffers) == (6005, 4800)


@pytest.mark.parametrize(
    ("dtype", "state", "buffers", "load"), [("float32", 1150, 2440, 1030), ("bfloat16", 655, 1240, 1525)]
)
def test_adapters_of_a_sharded_base_are_whole(dtype: Dtype, state: int, buffers: int, load: int):
    """Of 1,000 weights 10 are adapters: 40 bytes, with gradients of 40 and moments of 80 in each of four processes.

    A quarter of 990 weights takes 990 or 495 bytes. Three copies of 200 weights, and the gradients to be sent. In
    bfloat16 both forms of the base are there while it is rounded: 6 bytes of each weight.
    """
    settings = TrainingSettings(**SHARDED, lora=LoraSettings())
    estimate = _estimate(weights=4000, gradients=40, optimizer=80)
    memory = process_memory(estimate, replace(_sizes(), trained=10), settings, dtype=dtype)
    assert (memory.state, memory.adapters, memory.buffers, memory.load) == (state, 160, buffers, load)
    assert f"optimizer {state} (of it 160 of adapters, which are not sharded), " in memory.describe(str)


def test_passes_in_bfloat16_halve_the_gathered_weights_only():
    """The state stays in float32. Of five copies of 200 weights, the gradient that is reduced does too: 1600 + 800."""
    memory = process_memory(_estimate(), _sizes(), TrainingSettings(**SHARDED), dtype="bfloat16")
    assert (memory.state, memory.buffers, memory.load) == (5005, 2400, 2000)


@pytest.mark.parametrize(("tied", "unit"), [(True, 200), (False, 400)])
def test_the_largest_unit_is_a_layer_or_the_embedding_with_its_head(tied: bool, unit: int):
    """(1000 − 200) / 4 = 200 a layer beside an embedding of 200; a head of its own makes the embedding's unit 400."""
    assert largest_unit(_sizes(tied=tied)) == unit


def test_the_largest_unit_is_that_of_a_real_model(tiny_folder: Path):
    """Up to the vectors of the last norm, which FSDP gathers with the embedding."""
    model = load(tiny_folder).model
    sizes = ModelSizes(
        config=model.config,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        trained=0,
        trained_tensors=0,
    )
    layer = sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    around = sizes.parameters - layer * model.config.num_hidden_layers
    assert largest_unit(sizes) == pytest.approx(max(layer, around), abs=model.config.hidden_size)
