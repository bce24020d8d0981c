"""Conditions under which a setting is read."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from grpo.config.base import RunName, Settings
from grpo.config.loading import describe_errors
from grpo.config.rollout import RolloutSettings
from grpo.config.training import TrainingSettings
from tests.places import ROOT


def _errors(kind: type[Settings], document: dict[str, Any], **options: bool) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(document)
    return describe_errors(caught.value, kind, document, **options)


@pytest.mark.parametrize(
    ("kind", "document", "message"),
    [
        (TrainingSettings, {"length_normalizer": 9}, "with algorithm grpo. Leave it out, or set algorithm to dr_grpo"),
        (TrainingSettings, {"algorithm": "rloo", "clip_low": 0.1}, "with algorithm rloo. Leave it out"),
        (TrainingSettings, {"update_timeout_s": 9.0}, "with processes 1. Leave it out"),
        (RolloutSettings, {"max_rounds": 2}, "without informative_groups. Leave it out"),
    ],
)
def test_a_setting_that_another_one_makes_ineffective_is_refused(
    kind: type[Settings], document: dict[str, Any], message: str
):
    """The error names both settings and the remedy."""
    (error,) = _errors(kind, document)
    assert error.endswith(f" {[*document][-1]} has no effect {message}")


def test_no_setting_is_called_keys():
    """`dict(model)` takes an object with `keys` for a mapping, and Prefect calls it on each config of a flow."""
    from grpo.config.pipeline import PipelineConfig
    from grpo.config.retraining import RetrainConfig
    from grpo.config.tuning import TuneConfig

    for config in (PipelineConfig, RetrainConfig, TuneConfig):
        schema = config.model_json_schema()
        models = {config.__name__: schema, **schema["$defs"]}
        assert [name for name, model in models.items() if "keys" in model.get("properties", {})] == []


def test_a_run_cannot_have_the_name_of_anything_else_in_the_home():
    """Its report would go into the model cache, or a folder would be in the place of the keys or of a database."""
    sources = [path.read_text() for part in ("grpo", "flows", "tasks") for path in (ROOT / part).rglob("*.py")]
    places = {name for source in sources for name in re.findall(r"home(?:\(\))? / [\"']([\w.]+)[\"']", source)}
    assert {"artifacts", "keys.json", "mlflow.db", "models", "stores.lock"} <= places
    name = TypeAdapter(RunName)
    for place in (*places, "mlflow.db-wal", "Keys.JSON"):
        with pytest.raises(ValidationError, match=r"of GRPO_HOME|that GRPO_HOME keeps"):
            name.validate_python(place)
    for good in ("nightly", "models2", "v1.2", "keys"):
        assert name.validate_python(good) == good
