"""Settings of a distillation: what contradicts itself is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from grpo.config.distillation import DistillationSettings
from grpo.config.training import TrainingSettings

HINTED = {"privileged_context": ["outcome"]}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "its own teacher needs a hint. Set privileged_context"),
        ({"privileged_context": ["outcome", "outcome"]}, "names a part twice"),
        ({**HINTED, "distillation_weight": 0}, "distillation_weight"),
        ({**HINTED, "teacher_prompt_template": "{prompt}"}, "needs {prompt} and {privileged_context}, each once"),
        ({**HINTED, "teacher_prompt_template": "{prompt} {privileged_context} {x}"}, "no other name in braces"),
        (
            {"teacher_model_name_or_path": "a/b", "teacher_prompt_template": "{privileged_context} {prompt}"},
            "no effect",
        ),
        ({"teacher_model_name_or_path": "a/b", "teacher_model_kind": "live"}, "teacher_model_kind has no effect with"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(settings: dict[str, Any], problem: str):
    """The message names the setting and the remedy."""
    with pytest.raises(ValidationError) as refused:
        DistillationSettings.model_validate(settings)
    assert problem in str(refused.value)


@pytest.mark.parametrize("other", [{"algorithm": "ppo"}, {"algorithm": "trpo"}, {"engine": "trl"}])
def test_a_distillation_that_would_not_be_read_is_refused(other: dict[str, Any]):
    """Critics, trust regions and TRL's trainer take their own steps."""
    with pytest.raises(ValidationError, match="distillation has no effect with"):
        TrainingSettings.model_validate({"distillation": HINTED, **other})


def test_the_texts_of_a_message_may_have_braces():
    """Neither the hint nor the user's message is read as a template."""
    settings = DistillationSettings.model_validate(
        {**HINTED, "teacher_prompt_template": "{privileged_context}|{prompt}"}
    )
    assert settings.teacher_message("a {privileged_context}", '{"x": 1} {prompt}') == (
        '{"x": 1} {prompt}|a {privileged_context}'
    )
