from __future__ import annotations

from pathlib import Path

import pytest

from grpo.rewards.learned.training import train_on_pairs
from tests.grpo.rewards.learned.polite_replies import preferences


@pytest.fixture(scope="session")
def polite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a reward trained to prefer polite replies."""
    folder = tmp_path_factory.mktemp("polite")
    pairs = preferences(300)
    train_on_pairs(pairs[:200], pairs[200:], folder, split="the last 100")
    return folder
