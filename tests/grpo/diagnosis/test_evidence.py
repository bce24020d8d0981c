"""Trends over iterations, worked out by hand."""

from __future__ import annotations

import pytest

from grpo.diagnosis.evidence import rise, rise_error


def test_a_rise_compares_the_last_third_with_the_first():
    """Thirds of two: (.6 + .8)/2 − (0 + .2)/2 = .7 − .1"""
    assert rise([0.0, 0.2, 0.1, 0.3, 0.6, 0.8]) == pytest.approx(0.6)
    assert rise([]) == 0


def test_the_error_of_a_rise_is_the_noise_between_iterations():
    """Differences .2, −.1, .2: mean square .03, thirds of one → √.03 = .1732. Alternating noise has a large error."""
    assert rise_error([0.0, 0.2, 0.1, 0.3]) == pytest.approx(0.1732, abs=1e-4)
    assert rise_error([0.5]) == 0
    noisy = [0.2, 0.6] * 6
    assert abs(rise(noisy)) < rise_error(noisy)
