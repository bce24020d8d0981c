"""Settings of a retraining that are refused, and the modules of its sources."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from grpo.config.loading import load_settings
from grpo.config.retraining import RetrainConfig
from grpo.config.tuning import TuneConfig
from grpo.errors import ConfigError
from tests.doubles import changed, short_run

LOG = {"kind": "jsonl", "path": "log.jsonl"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of sources; the import path is restored."""
    (tmp_path / "chats_of_ours.py").write_text("def chats(count: int = 1):\n    yield {}\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.delitem(sys.modules, "chats_of_ours", raising=False)
    return tmp_path


def _retraining(folder: Path, *sources: dict[str, object]) -> RetrainConfig:
    document = {
        "name": "again",
        "pipeline": "run.yaml",
        "conversations": list(sources),
        "curation": {"licences": ["own"]},
    }
    (folder / "retrain.yaml").write_text(yaml.safe_dump(document))
    return load_settings(folder / "retrain.yaml", RetrainConfig)


def test_a_run_on_a_taskset_cannot_be_retrained(folder: Path):
    """Its environment plays its own tasks alone, so no conversation could be trained on."""
    named = {"kind": "verifiers", "id": "my-words", "args": {}}
    run = changed(short_run(folder), environment=named, scenarios={"sources": [named]})
    (folder / "run.yaml").write_text(yaml.safe_dump({**run, "environment": named}))
    config = _retraining(folder, LOG)
    with pytest.raises(
        ConfigError, match=r"run\.yaml: environment verifiers my-words plays only the tasks of its taskset"
    ):
        config.load_pipeline()


def test_tasks_of_a_taskset_are_not_conversations(folder: Path):
    """They are played in the environment of the taskset alone."""
    with pytest.raises(ConfigError, match=r"the source verifiers my-words, .* Name a log"):
        _retraining(folder, LOG, {"kind": "verifiers", "id": "my-words"})


def test_a_source_of_conversations_is_imported_from_the_folder_of_the_retraining(folder: Path):
    """The place is not a part of a cache identity; a retraining without own sources imports from nowhere."""
    from grpo.identity.cache_identity import identity

    config = _retraining(folder, {"kind": "python", "object": "chats_of_ours:chats"})
    assert config.import_from == str(folder)
    assert importlib.import_module("chats_of_ours").__file__ == str(folder / "chats_of_ours.py")
    assert "import_from" not in identity(config)
    assert _retraining(folder, LOG).import_from is None


def test_the_modules_of_a_config_within_a_study_are_imported_from_its_folder(folder: Path):
    """As those of a config in a file of its own."""
    base = short_run(folder, scenarios={"sources": [{"kind": "python", "object": "chats_of_ours:chats"}]})
    (folder / "tune.yaml").write_text(yaml.safe_dump({"name": "study", "base": base}))
    assert load_settings(folder / "tune.yaml", TuneConfig).base.import_from == str(folder)
    assert str(folder) in sys.path


def test_corrections_need_a_serving_log(tmp_path: Path):
    """Other sources have none, so that the setting would have no effect."""
    document = {
        "name": "again",
        "pipeline": "run.yaml",
        "conversations": [LOG],
        "curation": {"licences": ["own"]},
        "corrections": {"method": "sft", "epochs": 2},
    }
    with pytest.raises(ValidationError, match="Add a source of kind served"):
        RetrainConfig.model_validate(document)
    served = {"kind": "served", "path": str(tmp_path)}
    config = RetrainConfig.model_validate({**document, "conversations": [LOG, served]})
    assert config.corrections is not None
    assert config.corrections.epochs == 2


@pytest.mark.parametrize(
    ("corrections", "reason"),
    [
        ({"method": "sft", "beta": 0.1}, "beta"),
        ({"method": "dpo", "beta": 0}, "greater than 0"),
        ({"method": "dpo", "max_corrections": 8}, "max_corrections 8 is below min_corrections 16"),
        ({"epochs": 2}, "method"),
    ],
)
def test_corrections_have_the_settings_of_their_method(tmp_path: Path, corrections: dict[str, object], reason: str):
    """SFT has no beta, and DPO one above 0."""
    document = {
        "name": "again",
        "pipeline": "run.yaml",
        "conversations": [{"kind": "served", "path": str(tmp_path)}],
        "curation": {"licences": ["own"]},
    }
    with pytest.raises(ValidationError, match=reason):
        RetrainConfig.model_validate({**document, "corrections": corrections})
