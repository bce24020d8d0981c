"""Searches over runs: trials, storage, and dimensions that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from grpo.config.loading import load_settings
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.config.search_space import with_values
from grpo.config.tuning import HPOConfig, TuneConfig
from grpo.errors import ConfigError
from tests.places import ROOT

QUICKSTART = ROOT / "data" / "configs" / "quickstart.yaml"


def plan(**changes: object) -> TuneConfig:
    return TuneConfig.model_validate({"name": "t", "base": str(QUICKSTART), **changes})


@pytest.mark.parametrize(
    "path",
    [
        "training.iterations",
        "policy.model",
        "reward",
        "scenarios.validation_fraction",
        "evaluation.temperature",
        "seed",
    ],
)
def test_a_dimension_that_makes_trials_incomparable_is_refused(path: str):
    """Length, base policy, data and metric are the same for all trials."""
    with pytest.raises(ConfigError, match=f"dimension {path} cannot be tuned"):
        plan(search_space={path: {"type": "int", "low": 1, "high": 2}})


def test_a_dimension_that_the_algorithm_does_not_read_is_refused(tmp_path: Path):
    """REINFORCE has no clip."""
    base = load_config(ROOT / "data" / "configs" / "reinforce.yaml").model_dump(mode="json")
    with pytest.raises(ConfigError, match="clip_low has no effect with algorithm reinforce"):
        plan(base=base, search_space={"training.clip_low": {"type": "uniform", "low": 0.1, "high": 0.2}})


def test_trials_of_larger_groups_have_fewer_iterations():
    """8 iterations of 32 × 8 episodes are 4 of 32 × 16 and 16 of 32 × 4; the best has as many as the 42 of the base."""
    config = plan(iterations=8)
    counts = [config.trial({"rollout.group_size": size}).training.iterations for size in (4, 8, 16)]
    assert counts == [16, 8, 4]
    assert config.best({"rollout.group_size": 16}).training.iterations == 21
    assert config.best({}).training.iterations == 42


def test_a_trial_differs_from_the_base_in_its_values_and_its_length_alone():
    """Data, base policy, reward and seeds are those of the base."""
    config = plan(iterations=42)
    trial = config.trial({"training.learning_rate": 1e-4})
    assert isinstance(trial, PipelineConfig)
    assert trial == with_values(config.base, {"training.learning_rate": 1e-4})


@pytest.mark.parametrize(
    "url", ["postgresql://tuner:sesame@localhost/studies", "postgresql://tuner@localhost/studies?password=sesame"]
)
def test_a_password_in_the_address_of_the_storage_is_refused_and_not_repeated(url: str):
    """It would be stored in logs and records."""
    with pytest.raises(ConfigError, match="PGPASSWORD") as refused:
        plan(storage=url)
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "studies.db"])
def test_a_storage_that_ends_with_its_process_is_refused(url: str):
    """Memory, and a text that is not a URL."""
    with pytest.raises(ConfigError, match="storage"):
        plan(storage=url)


def test_a_pruner_without_pruning_is_refused():
    """It would be ignored."""
    with pytest.raises(ValidationError, match="no effect without pruning"):
        HPOConfig(pruning=False, pruner="successive_halving")


def test_the_shipped_study_is_valid(monkeypatch: pytest.MonkeyPatch):
    """Its base is the quickstart."""
    monkeypatch.chdir(ROOT)
    config = load_settings(ROOT / "data" / "configs" / "tune.yaml", TuneConfig)
    assert config.base == load_config(QUICKSTART)
    assert config.trial({}).training.iterations < config.base.training.iterations
