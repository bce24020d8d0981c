"""Models of the tests with the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def clerk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The desk's model, with heads of a size that vLLM computes on a CPU."""
    from tests.vllm.models import widen_heads

    folder = tmp_path_factory.mktemp("clerk")
    widen_heads(folder)
    return folder
