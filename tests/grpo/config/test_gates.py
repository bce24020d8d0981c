from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from grpo.config.gates import PassGate
from grpo.config.loading import load_settings
from grpo.config.pipeline import PipelineConfig
from tests.doubles import short_run

TWICE = {"kind": "pass_hat_k", "k": 2, "floor": 0.6}


def test_a_pass_hat_k_gate_is_loaded_from_yaml(tmp_path: Path):
    """Its options are typed."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(short_run(tmp_path, gates=[TWICE], evaluation={"samples": 2})))
    assert load_settings(tmp_path / "run.yaml", PipelineConfig).gates == (PassGate(k=2, floor=0.6),)


def test_a_pass_hat_k_gate_needs_k_samples(tmp_path: Path):
    """pass^2 cannot be estimated from one episode a scenario; the error comes before any episode."""
    with pytest.raises(ValidationError, match=r"k 2 needs 2 episodes of a scenario, but evaluation\.samples is 1"):
        PipelineConfig.model_validate(short_run(tmp_path, gates=[TWICE]))


@pytest.mark.parametrize("option", [{"k": 0}, {"floor": 0.0}, {"floor": 1.0}, {"k": "many"}, {"share": 0.5}], ids=str)
def test_an_invalid_option_of_a_gate_is_refused(option: dict[str, object]):
    """No episode, a floor that every or no candidate reaches, an unknown name."""
    with pytest.raises(ValidationError):
        PassGate.model_validate({**TWICE, **option})
