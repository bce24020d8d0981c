"""Search spaces: every dimension sets an existing field, and invalid values are refused before the first trial."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from grpo.config.pipeline import load_config
from grpo.config.search_space import check_space, get_search_space, with_values
from grpo.config.tuning import HPOConfig, TuneConfig
from grpo.errors import ConfigError
from grpo.notebook.config import TrainingConfig
from tests.places import ROOT

QUICKSTART = ROOT / "data" / "configs" / "quickstart.yaml"


def plan(**changes: object) -> TuneConfig:
    return TuneConfig.model_validate({"name": "t", "base": str(QUICKSTART), **changes})


NAMES = ("grpo", "full", "customer_service", "conservative", "aggressive")


DIMENSIONS = [(name, path) for name in NAMES for path in get_search_space(name, naming="pipeline")]


LEARNING_RATE = {"type": "loguniform", "low": 1e-7, "high": 1e-4}


@pytest.mark.parametrize(("name", "path"), DIMENSIONS)
def test_every_dimension_of_a_named_space_changes_the_settings(name: str, path: str):
    """In the pipeline and under the same name in a notebook: each value gives a config with this value."""
    section, field = path.split(".")
    distribution = get_search_space(name, naming="pipeline")[path]
    assert get_search_space(name)[field] == distribution
    values = list(distribution.boundary_values())
    runs = [with_values(load_config(QUICKSTART), {path: value}) for value in values]
    assert [getattr(getattr(config, section), field) for config in runs] == values
    assert [getattr(with_values(TrainingConfig(), {field: value}), field) for value in values] == values
    assert len(set(values)) == len(values)


@pytest.mark.parametrize("name", NAMES)
def test_a_named_space_fits_the_shipped_configs(name: str):
    """Both the notebook's and the quickstart's."""
    check_space(get_search_space(name), TrainingConfig())
    assert plan(search_space=name).space.keys() == get_search_space(name, naming="pipeline").keys()


def test_spaces_differ_in_their_range_of_learning_rates():
    """The range widens from conservative to aggressive."""
    widths = []
    for name in ("conservative", "grpo", "aggressive"):
        low, _, high = get_search_space(name)["learning_rate"].boundary_values()
        widths.append(high / low)  # type: ignore[operator]
    assert widths == pytest.approx([10, 1000, 1000])
    assert set(get_search_space("full")) > set(get_search_space("grpo"))


def test_an_unknown_space_is_refused_with_the_known_names():
    """It is not an empty space."""
    with pytest.raises(ConfigError, match=r"'bold'\. There are grpo, full"):
        get_search_space("bold")


def test_a_custom_space_is_a_dict():
    """All four types, as in the guide."""
    config = HPOConfig.model_validate(
        {
            "search_space": {
                "learning_rate": LEARNING_RATE,
                "group_size": {"type": "categorical", "choices": [4, 8, 16]},
                "temperature": {"type": "uniform", "low": 0.5, "high": 1.2},
                "epochs": {"type": "int", "low": 1, "high": 3},
            },
            "n_trials": 100,
            "optimization_direction": "maximize",
            "pruning": True,
        }
    )
    assert not isinstance(config.search_space, str)
    assert [dimension.type for dimension in config.search_space.values()] == [
        "loguniform", "categorical", "uniform", "int",
    ]  # fmt: skip
    check_space(config.search_space, TrainingConfig())


@pytest.mark.parametrize(
    ("dimension", "message"),
    [
        ({"type": "loguniform", "low": 0.0, "high": 1.0}, "greater than 0"),
        ({"type": "uniform", "low": 1.0, "high": 1.0}, "low 1.0 is not below high 1.0"),
        ({"type": "int", "low": 5, "high": 2}, "not below"),
        ({"type": "categorical", "choices": [4]}, "at least 2"),
        ({"type": "normal", "low": 0, "high": 1}, "normal"),
        ({"type": "uniform", "low": 0.0, "high": 1.0, "step": 0.1}, "step"),
    ],
)
def test_an_invalid_dimension_is_refused(dimension: dict[str, object], message: str):
    """With the reason."""
    with pytest.raises(ValidationError, match=message):
        HPOConfig.model_validate({"search_space": {"beta": dimension}})


@pytest.mark.parametrize(
    ("path", "dimension", "message"),
    [
        (
            "clip_range",
            {"type": "uniform", "low": 0.1, "high": 0.3},
            "clip_range is not a field of the tuned",
        ),
        ("learning_rat", LEARNING_RATE, "Near it are learning_rate"),
        ("group_size", {"type": "int", "low": 1, "high": 8}, "group_size = 1 cannot be set.*greater"),
        ("group_size", {"type": "uniform", "low": 4, "high": 16}, "valid integer"),
        ("adam_beta1", {"type": "uniform", "low": 0.5, "high": 1.0}, "adam_beta1 = 1.0"),
        ("algorithm", {"type": "categorical", "choices": ["grpo", "genetic"]}, "genetic"),
    ],
)
def test_a_dimension_outside_of_its_field_is_refused_before_the_first_trial(path: str, dimension: object, message: str):
    """An unknown name, and an end outside the bounds of the field."""
    config = HPOConfig.model_validate({"search_space": {path: dimension}})
    assert not isinstance(config.search_space, str)
    with pytest.raises(ConfigError, match=message):
        check_space(config.search_space, TrainingConfig())
