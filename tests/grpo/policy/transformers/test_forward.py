"""Forward passes over token sequences."""

from __future__ import annotations

import pytest
import torch

from grpo.policy.transformers.forward.passes import is_out_of_memory


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_out_of_memory_errors_are_recognized(error: RuntimeError, memory: bool):
    """By class on accelerators, by message on the CPU."""
    assert is_out_of_memory(error) is memory
