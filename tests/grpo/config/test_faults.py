"""Faults of settings: each once, where it stands in the document."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from grpo.config.adapters import LoraSettings
from grpo.config.base import Settings
from grpo.config.faults import faults
from grpo.config.gates import CategoryGate
from grpo.config.judge import JudgeSettings
from grpo.config.rewards import RewardComponent
from grpo.config.scenarios import ScenarioSettings
from grpo.config.training import TrainingSettings
from grpo.config.tuning import HPOConfig


def _faults(kind: type[Settings], document: dict[str, Any], **options: bool) -> list[str]:
    with pytest.raises(ValidationError) as refusal:
        kind.model_validate(document)
    return faults(refusal.value, document, **options)


@pytest.mark.parametrize(
    ("kind", "document", "expected"),
    [
        (ScenarioSettings, {"sources": [{"kind": "jsonl"}]}, ["sources.0.path: Field required"]),
        (HPOConfig, {"search_space": {"a": {"type": "int", "low": 1}}}, ["search_space.a.high: Field required"]),
        (LoraSettings, {"target_modules": ["q", 3]}, ["target_modules.1: Input should be a valid string (got 3)"]),
        (LoraSettings, {"target_modules": 7},
         ["target_modules: Input should be a valid tuple, or 'all-linear' (got 7)"]),
        (LoraSettings, {"r": 0, "x": 1}, ["r: Input should be greater than or equal to 1 (got 0)",
                                          "x: Extra inputs are not permitted (got 1)"]),
        (TrainingSettings, {"sharding": "sharded"},
         ["settings that do not agree: sharding: sharded needs at least 2 processes"]),
    ],
    ids=["list", "mapping", "member", "union", "two", "whole"],
)  # fmt: skip
def test_a_fault_stands_alone_at_its_place(kind: type[Settings], document: dict[str, Any], expected: list[str]):
    """No member of a union in the place, no list that is too short without its bad item, no value that is the whole."""
    assert _faults(kind, document) == expected


def test_a_secret_document_shows_no_value():
    """Somebody may have put the key itself where its name belongs."""
    told = _faults(JudgeSettings, {"model": "m", "key": "sk-s3cret"}, secret=True)
    assert len(told) == 1
    assert told[0].startswith("key: ")
    assert "s3cret" not in told[0]


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (TrainingSettings, {"learning_rate": None}),
        (RewardComponent, {"kind": "checks", "weight": 1.0, "floor": None}),
        (RewardComponent, {"kind": "checks", "weight": 1.0, "options": {"a": [{"b": None}]}}),
        (CategoryGate, {"max_drop_by_category": {"refund": None}}),
    ],
    ids=["learning rate", "floor", "options", "max_drop_by_category"],
)
def test_no_setting_is_infinite_or_not_a_number(kind: type[Settings], document: dict[str, Any], number: float):
    """However deep it stands."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(part) for name, part in value.items()}
        return [filled(part) for part in value] if isinstance(value, list) else number if value is None else value

    (fault,) = _faults(kind, filled(document))
    assert "finite number" in fault
