from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from grpo.config.base import Settings, with_paths_from
from grpo.config.commented_yaml import commented_yaml
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.config.training import LoraSettings
from tests.places import ROOT

OTHER_KINDS = ("retrain", "tune")
CONFIGS = [path for path in sorted((ROOT / "data" / "configs").glob("*.yaml")) if path.stem not in OTHER_KINDS]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_commented_config_is_the_same_config(tmp_path: Path, path: Path):
    """Each shipped config, written with comments and read back."""
    whole = tmp_path / "whole.yaml"
    whole.write_text(commented_yaml(with_paths_from(load_config(path), tmp_path)))
    assert load_config(whole) == load_config(path)


def _fields(model: type[Settings]) -> set[str]:
    """Names of all fields of a section and of the sections in it."""
    names = set(model.model_fields)
    for field in model.model_fields.values():
        for part in re.findall(r"grpo\.config\.\w+\.(\w+)", repr(field.annotation)):
            for kind in _kinds(part):
                names |= _fields(kind)
    return names


def _kinds(name: str) -> list[type[Settings]]:
    def below(model: type[Settings]) -> list[type[Settings]]:
        return [model, *(kind for child in model.__subclasses__() for kind in below(child))]

    return [kind for kind in below(Settings) if kind.__name__ == name]


def test_every_setting_has_a_description():
    """Those of alternative sections are comments."""
    text = commented_yaml(load_config(CONFIGS[0].with_name("quickstart.yaml")))
    named = set(re.findall(r"^[\s#-]*(\w+): ?", text, flags=re.MULTILINE))
    fields = _fields(PipelineConfig)
    assert {"microbatch_tokens", "gae_lambda", "target_modules", "patience", "domains", "max_kl"} <= fields
    assert fields - named == set()
    words = " ".join(re.sub(r"[\s#]+", " ", text).split())
    for meaning in (LoraSettings.model_fields["r"].description, PipelineConfig.model_fields["seed"].description):
        assert meaning is not None
        assert " ".join(meaning.split()) in words


def test_bounds_choices_and_defaults_are_shown():
    """The file is enough to fill in values."""
    text = " ".join(commented_yaml(load_config(CONFIGS[0].with_name("quickstart.yaml"))).replace("#", " ").split())
    assert "Episodes of each scenario: the group of an advantage. At least 2. group_size: 8" in text
    assert "One of constant, linear, cosine. Default: constant. lr_scheduler_type: cosine" in text
    assert "Above 0 and below 1. Default: 0.25. validation_fraction: 0.26" in text


def test_an_empty_list_of_sections_stays_a_list():
    """With the possible items as comments."""

    class Part(Settings):
        """A part."""

        size: int = 1

    class Whole(Settings):
        """A whole."""

        parts: tuple[Part, ...] = ()

    text = commented_yaml(Whole())
    assert yaml.safe_load(text) == {"parts": []}
    assert "#   size: 1" in text
