"""Trends over iterations, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.diagnosis.evidence import read_evidence, rise, rise_error
from grpo.errors import ConfigError
from tests.grpo.diagnosis.planted import Plant, planted_run


def test_a_rise_compares_the_last_third_with_the_first():
    """Thirds of two: (.6 + .8)/2 − (0 + .2)/2 = .7 − .1"""
    assert rise([0.0, 0.2, 0.1, 0.3, 0.6, 0.8]) == pytest.approx(0.6)
    assert rise([]) == 0


def test_the_error_of_a_rise_is_the_noise_between_iterations():
    """Differences .2, −.1, .2: mean square .03, thirds of one → √.03 = .1732. Alternating noise has a large error."""
    assert rise_error([0.0, 0.2, 0.1, 0.3]) == pytest.approx(0.1732, abs=1e-4)
    assert rise_error([0.5]) == 0
    assert rise_error([0.0, 2e200, 1e200, 3e200]) == pytest.approx(1.732e200, rel=1e-3)
    noisy = [0.2, 0.6] * 6
    assert abs(rise(noisy)) < rise_error(noisy)


def test_a_name_and_a_config_that_somebody_else_wrote_do_no_harm(tmp_path: Path):
    """A printed command has the name as one word, and a config that is not YAML is an error of the config."""
    report = planted_run(Plant(iterations=2), tmp_path)
    evidence = read_evidence(report.model_copy(update={"name": "a; rm -rf x"}))
    assert evidence.show() == "grpo show 'a; rm -rf x' --conversations --iteration 1"
    assert evidence.train("a=1") == "grpo train CONFIG --set a=1 --set name='a; rm -rf x'-retry"
    with pytest.raises(ConfigError, match=r"config of the run .* cannot be read as YAML"):
        read_evidence(report.model_copy(update={"config": "{{{"}))
