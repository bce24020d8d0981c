from __future__ import annotations

from pathlib import Path

import torch

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PolicySettings
from grpo.policy.transformers.adapters import has_adapters
from grpo.policy.transformers.model import load
from grpo_tasks.load_base import load_base
from grpo_tasks.warm_start import warm_start
from tests.tasks.adapted import put_adapted


def test_a_champion_starts_with_its_own_weights(tiny_folder: Path, tmp_path: Path):
    """The model folder is the champion's policy, by the hash of its weights."""
    champion = load_base.fn(policy=PolicySettings(model=str(tiny_folder)), content="", store=str(tmp_path))
    started = warm_start.fn(champion=champion.checkpoint, store=str(tmp_path))
    assert load(ArtifactStore(str(tmp_path)).path(started.model)).hash == champion.policy


def test_a_champion_of_adapters_starts_as_one_model(tiny_folder: Path, tmp_path: Path):
    """Merged into the weights: it says what the adapted champion says, and needs no base."""
    store = ArtifactStore(str(tmp_path))
    under = load_base.fn(policy=PolicySettings(model=str(tiny_folder)), content="", store=str(tmp_path)).checkpoint
    adapted, champion = put_adapted(store, tiny_folder, under)
    started = warm_start.fn(champion=adapted, store=str(tmp_path))
    model = load(store.path(started.model)).model
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        said, before = model(ids).logits, load(tiny_folder).model(ids).logits
        torch.testing.assert_close(said, champion.model(ids).logits, atol=1e-5, rtol=0)
    assert not has_adapters(model)
    assert (said - before).abs().max() > 1e-3
