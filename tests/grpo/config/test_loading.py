"""Settings from YAML: overrides, errors by place, bounded size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grpo.config.base import Settings
from grpo.config.gates import CategoryGate
from grpo.config.loading import MOST_BYTES, apply_overrides, describe_errors, load_settings, parse_yaml, read_yaml
from grpo.config.pipeline import PipelineConfig, PolicySettings, load_config
from grpo.config.rewards import JudgeSettings, RewardComponent
from grpo.config.rollout import RolloutSettings
from grpo.config.scenarios import ScenarioSettings
from grpo.config.training import LoraSettings, TrainingSettings
from grpo.config.tuning import HPOConfig
from grpo.errors import ConfigError
from tests.places import ROOT

QUICKSTART = ROOT / "data" / "configs" / "quickstart.yaml"


# ---- files and overrides ---------------------------------------------------------------------------------------------


def test_a_file_is_merged_over_the_one_that_it_extends_and_overrides_over_both(tmp_path: Path):
    """Group size from the file, shards from the override, scenarios from the extended file."""
    (tmp_path / "base.yaml").write_text("scenarios: 4\ngroup_size: 3\nshards: 2\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\ngroup_size: 5\n")
    settings = load_settings(tmp_path / "mine.yaml", RolloutSettings, ("shards=1",))
    assert (settings.scenarios, settings.group_size, settings.shards) == (4, 5, 1)


def test_an_unknown_key_is_named(tmp_path: Path):
    """`group_size` is a key of other settings."""
    (tmp_path / "mine.yaml").write_text("model: a\ngroup_size: 5\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: 1 setting\(s\) cannot be used\n  group_size: Extra"):
        load_settings(tmp_path / "mine.yaml", PolicySettings)


def test_overrides_of_a_config_equal_overrides_of_its_file():
    """A value, a new section and another kind of environment."""
    overrides = ("training.iterations=2", "environment.kind=conversation", "evaluation.resamples=300", "name=mine")
    assert apply_overrides(load_config(QUICKSTART), overrides) == load_config(QUICKSTART, overrides)


def test_an_invalid_override_of_a_config_names_key_value_and_rule():
    """The same message as for a file, with the class of the settings instead of the file."""
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
def test_an_address_with_a_password_is_refused_everywhere(override: str, place: str):
    """Configs are stored in databases and reports; the error names the place without the password."""
    with pytest.raises(ConfigError, match=place) as caught:
        load_config(QUICKSTART, (override,))
    assert "s3cret" not in str(caught.value)


def test_an_override_that_does_not_fit_shows_no_password(tmp_path: Path):
    """Its key is wrong, so that it is refused before its value is looked at."""
    (tmp_path / "c.yaml").write_text("policy: {model: m}")
    with pytest.raises(ConfigError, match=r"override 'policy.model.x=postgresql://u:\*\*\*@h/d' does not fit"):
        load_settings(tmp_path / "c.yaml", PipelineConfig, ("policy.model.x=postgresql://u:secret@h/d",))


def test_a_long_value_is_shortened_in_the_rule_as_well(tmp_path: Path):
    """pydantic repeats an unknown kind in its message."""
    (tmp_path / "c.yaml").write_text(f"environment: {{kind: {'x' * 50_000}}}")
    with pytest.raises(ConfigError) as refused:
        load_settings(tmp_path / "c.yaml", PipelineConfig)
    assert len(str(refused.value)) < 3_000


def test_a_recursive_document_is_refused(tmp_path: Path):
    """A YAML alias may contain itself."""
    (tmp_path / "mine.yaml").write_text("itself: &itself [*itself]\n")
    with pytest.raises(ConfigError, match="an alias inside of the value that it repeats"):
        load_settings(tmp_path / "mine.yaml", PolicySettings)


# ---- errors ----------------------------------------------------------------------------------------------------------


def _errors(kind: type[Settings], document: dict[str, Any], **options: bool) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(document)
    return describe_errors(caught.value, kind, document, **options)


@pytest.mark.parametrize(
    ("kind", "document", "expected"),
    [
        (ScenarioSettings, {"sources": [{"kind": "jsonl"}]}, ["sources.0.path: Field required"]),
        (HPOConfig, {"search_space": {"a": {"type": "int", "low": 1}}}, ["search_space.a.high: Field required"]),
        (LoraSettings, {"target_modules": ["q", 3]}, ["target_modules.1: Input should be a valid string (got 3)"]),
        (LoraSettings, {"target_modules": 7},
         ["target_modules: Input should be a valid tuple, or 'all-linear' (got 7)"]),
        (LoraSettings, {"r": 0, "x": 1}, ["r: Input should be greater than or equal to 1 (got 0)",
                                          "x: Extra inputs are not permitted. The settings here are lora_alpha, r, "
                                          "target_modules (got 1)"]),
        (TrainingSettings, {"sharding": "sharded"},
         ["settings in conflict: sharding: sharded needs at least 2 processes"]),
    ],
    ids=["list", "mapping", "member", "union", "two", "whole"],
)  # fmt: skip
def test_each_error_is_reported_once_at_its_place(kind: type[Settings], document: dict[str, Any], expected: list[str]):
    """No union member in the place, no consequential error of the list, no value for the whole document."""
    assert _errors(kind, document) == expected


@pytest.mark.parametrize(
    ("kind", "document", "expected"),
    [
        (
            RolloutSettings,
            {"group_siz": 8},
            "group_siz: Extra inputs are not permitted. Did you mean group_size? (got 8)",
        ),
        (
            ScenarioSettings,
            {"sources": [{"kind": "multidogo", "path": "x", "levle": 1}]},
            "sources.0.levle: Extra inputs are not permitted. Did you mean level? (got 1)",
        ),
        (
            ScenarioSettings,
            {"sources": [{"kind": "jsonl", "path": "x", "levle": 1}]},
            "sources.0.levle: Extra inputs are not permitted. The settings here are chat, columns, kind, messages, "
            "path, records (got 1)",
        ),
        (TrainingSettings, {"lora": {"rr": 1}}, "lora.rr: Extra inputs are not permitted. Did you mean r? (got 1)"),
        (RolloutSettings, {"moon": 8}, "moon: Extra inputs are not permitted (got 8)"),
        (
            PipelineConfig,
            {
                **read_yaml(ROOT / "data/configs/quickstart.yaml"),
                "gates": [{"kind": "improvement", "one_key_decides": True}],
            },
            "gates.0.one_key_decides: Extra inputs are not permitted. The settings here are colluding_keys, kind, "
            "margin, max_base_loss, metric (got True)",
        ),
    ],
    ids=["section", "member of a union", "field of another member", "nested", "far from many", "far from few"],
)
def test_an_unknown_key_comes_with_the_nearest_field(kind: type[Settings], document: dict[str, Any], expected: str):
    """Of the settings at its place, not of others."""
    assert _errors(kind, document) == [expected]


def test_errors_of_a_secret_document_show_no_value():
    """The API key itself may have been set in place of its environment variable."""
    (error,) = _errors(JudgeSettings, {"model": "m", "api_key_env": "sk-s3cret"}, secret=True)
    assert error.startswith("api_key_env: ")
    assert "s3cret" not in error


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (TrainingSettings, {"learning_rate": None}),
        (RewardComponent, {"kind": "checks", "weight": 1.0, "floor": None}),
        (RewardComponent, {"kind": "checks", "weight": 1.0, "options": {"a": [{"b": None}]}}),
        (CategoryGate, {"max_drop_by_category": {"refund": None}}),
    ],
    ids=["learning rate", "floor", "options", "max drop"],
)
def test_infinite_numbers_and_nan_are_refused(kind: type[Settings], document: dict[str, Any], number: float):
    """At any depth."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(part) for name, part in value.items()}
        return [filled(part) for part in value] if isinstance(value, list) else number if value is None else value

    (error,) = _errors(kind, filled(document))
    assert "finite number" in error


# ---- bounded YAML ----------------------------------------------------------------------------------------------------


def test_aliases_and_merges_within_the_bounds_are_followed():
    """An alias repeats a value, a merge its keys."""
    text = "a: &a {x: 1, y: 2}\nb: *a\nc: {<<: *a, y: 3}"
    assert parse_yaml(text, place="t") == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 2}, "c": {"x": 1, "y": 3}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)), "20,000 values"),
        ("b0: &b0 {k: 1}\n" + "".join(f"b{i}: &b{i} {{<<: [*b{i - 1}, *b{i - 1}]}}\n" for i in range(1, 40)), "20,000"),
        ("[" + "1," * 20_001 + "]", "20,000 values"),
        ("&a [*a]", "an alias inside of the value that it repeats"),
        ("&a {x: {y: *a}}", "an alias inside of the value that it repeats"),
        ("[" * 51 + "]" * 51, "more than 50 levels"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: .* key 'a' is given twice"),
        ("2026-13-01", "month must be in"),
        ("9" * 5000, "cannot be read as YAML"),
        ("!!python/name:os.system", "could not determine a constructor"),
    ],
    ids=["aliases", "merges", "values", "circle", "deep circle", "levels", "twice", "date", "digits", "object"],
)
def test_yaml_beyond_the_bounds_or_with_objects_is_refused(text: str, reason: str):
    """2³⁹ values are counted without being built."""
    with pytest.raises(ConfigError, match=f"^t.*{reason}"):
        parse_yaml(text, place="t")


def test_levels_and_values_up_to_the_bounds_are_read():
    """50 levels; 19,998 numbers in a list under a key are 20,000 values with list, key and mapping counted: 20,001."""
    assert parse_yaml("[" * 50 + "]" * 50, place="t") is not None
    assert len(parse_yaml("a: [" + "1," * 19_997 + "]", place="t")["a"]) == 19_997
    with pytest.raises(ConfigError):
        parse_yaml("a: [" + "1," * 19_998 + "]", place="t")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"a: caf\xe9", "byte 6 is not UTF-8"), (b"#" * (MOST_BYTES + 1), "1,048,577 bytes, but at most 1,048,576")],
    ids=["encoding", "size"],
)
def test_a_file_that_is_not_text_or_too_large_is_named(tmp_path: Path, content: bytes, reason: str):
    """The error names the file."""
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"c\.yaml.* {reason}"):
        read_yaml(path)
