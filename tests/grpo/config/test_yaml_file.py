from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config.pipeline import load_config
from grpo.config.policy import PolicySettings
from grpo.config.rollout import RolloutSettings
from grpo.config.yaml_file import apply_overrides, load_settings
from grpo.errors import ConfigError
from tests.places import ROOT

QUICKSTART = ROOT / "data" / "configs" / "quickstart.yaml"


def test_settings_of_any_kind_are_read_from_what_they_extend_and_override(tmp_path: Path):
    """The file below is laid over the one that it extends, the override over both."""
    (tmp_path / "base.yaml").write_text("scenarios: 4\ngroup_size: 3\nshards: 2\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\ngroup_size: 5\n")
    found = load_settings(tmp_path / "mine.yaml", RolloutSettings, ("shards=1",))
    assert (found.scenarios, found.group_size, found.shards) == (4, 5, 1)


def test_a_key_of_another_kind_of_settings_is_named(tmp_path: Path):
    """What is allowed depends on the kind that is asked for."""
    (tmp_path / "mine.yaml").write_text("model: a\ngroup_size: 5\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: 1 setting\(s\) cannot be used\n  group_size: Extra"):
        load_settings(tmp_path / "mine.yaml", PolicySettings)


def test_overrides_are_the_same_over_a_config_as_over_its_file():
    """A value, a new section and another kind of environment; nothing of what was set before is in the way."""
    overrides = ("training.iterations=2", "environment.kind=conversation", "evaluation.resamples=300", "name=mine")
    assert apply_overrides(load_config(QUICKSTART), overrides) == load_config(QUICKSTART, overrides)


def test_an_override_of_a_config_that_cannot_be_used_names_key_value_and_rule():
    """The same message as for a file, with the kind of settings for the file."""
    with pytest.raises(ConfigError, match=r"PipelineConfig: 1 .*\n  training\.iterations: .*integer.*got 'many'"):
        apply_overrides(load_config(QUICKSTART), ("training.iterations=many",))


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("policy.model=openai+http://me:s3cret@host/v1#m", r"policy\.model openai\+http://me:\*\*\*@host/v1#m"),
        ("store=s3://me:s3cret@bucket/x", r"store s3://me:\*\*\*@bucket/x"),
        ("reward.0.options={model: 'http://me:s3cret@judge/v1'}", r"reward\.0\.options\.model"),
    ],
)
def test_an_address_with_a_password_is_refused_wherever_it_stands(override: str, place: str):
    """A config is kept in databases and reports; the error names the place, and not the password."""
    with pytest.raises(ConfigError, match=place) as caught:
        load_config(QUICKSTART, (override,))
    assert "s3cret" not in str(caught.value)


def test_a_document_that_contains_itself_is_refused(tmp_path: Path):
    """YAML may nest a node in itself."""
    (tmp_path / "mine.yaml").write_text("itself: &itself [*itself]\n")
    with pytest.raises(ConfigError, match="an alias inside of what it stands for"):
        load_settings(tmp_path / "mine.yaml", PolicySettings)
