from __future__ import annotations

from typing import get_args

import pytest

from grpo.algorithms.catalog import ALGORITHMS, make_algorithm
from grpo.config.training import AlgorithmName


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_has_its_name_and_its_own_values(name: str):
    """Without arguments nothing is replaced."""
    assert make_algorithm(name) == ALGORITHMS[name]
    assert make_algorithm(name).name == name


@pytest.mark.parametrize(
    "choice",
    [
        {"baseline": "group_median"},
        {"scale_by_std": False},
        {"clip_low": 0.0},
        {"clip_high": 0.0},
    ],
    ids=str,
)
def test_each_argument_replaces_its_own_field_and_no_other(choice: dict[str, object]):
    """False and 0 are values, too."""
    changed = make_algorithm("grpo", **choice)  # type: ignore[arg-type]
    (name, value) = next(iter(choice.items()))
    assert getattr(changed, name) == value != getattr(ALGORITHMS["grpo"], name)
    assert make_algorithm("grpo", **{name: getattr(ALGORITHMS["grpo"], name)}) == ALGORITHMS["grpo"]  # type: ignore[arg-type]


def test_a_config_accepts_every_algorithm_and_no_other():
    """The names of the settings are those of the catalog."""
    assert set(get_args(AlgorithmName)) == set(ALGORITHMS)
