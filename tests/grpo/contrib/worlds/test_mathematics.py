"""Calculations of BFCL."""

from __future__ import annotations

from tests.grpo.contrib.worlds.bfcl import run_calls


def test_numbers_are_calculated():
    """log₂ 8 = 3, √2 to three digits, σ of 2 and 4 is 1, 5 km are 5000 m; division by zero is refused."""
    results, _ = run_calls(
        "MathAPI", {},
        ("logarithm", {"value": 8, "base": 2, "precision": 5}), ("square_root", {"number": 2, "precision": 3}),
        ("standard_deviation", {"numbers": [2, 4]}), ("mean", {"numbers": [1, 2, 6]}),
        ("si_unit_conversion", {"value": 5, "unit_in": "km", "unit_out": "m"}), ("divide", {"a": 1, "b": 0}),
        ("power", {"base": -8, "exponent": 0.5}), ("mean", {"numbers": []}),
    )  # fmt: skip
    assert [result.get("result") for result in results] == [3.0, 1.41, 1.0, 3.0, 5000.0, None, None, None]
