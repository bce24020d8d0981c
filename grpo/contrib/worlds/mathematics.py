"""Calculations of BFCL, without a state."""

from __future__ import annotations

import math
import statistics
from typing import Any

from grpo.agents.tools import ToolError
from grpo.environments.world import State, World

_METRES = {"km": 1e3, "m": 1.0, "cm": 1e-2, "mm": 1e-3, "um": 1e-6, "nm": 1e-9}
_IMPERIAL = {
    ("cm", "in"): 0.393701,
    ("in", "cm"): 2.54,
    ("m", "ft"): 3.28084,
    ("ft", "m"): 0.3048,
    ("m", "yd"): 1.09361,
    ("yd", "m"): 0.9144,
    ("km", "miles"): 0.621371,
    ("miles", "km"): 1.60934,
    ("kg", "lb"): 2.20462,
    ("lb", "kg"): 0.453592,
}


def _finite(result: float) -> dict[str, float]:
    if isinstance(result, complex) or not math.isfinite(result):
        raise ToolError("the result is not a finite real number")
    return {"result": result}


def absolute_value(state: State, number: float) -> tuple[State, Any]:
    """Absolute value."""
    return state, _finite(abs(number))


def add(state: State, a: float, b: float) -> tuple[State, Any]:
    """Sum."""
    return state, _finite(a + b)


def subtract(state: State, a: float, b: float) -> tuple[State, Any]:
    """Difference."""
    return state, _finite(a - b)


def multiply(state: State, a: float, b: float) -> tuple[State, Any]:
    """Product."""
    return state, _finite(a * b)


def divide(state: State, a: float, b: float) -> tuple[State, Any]:
    """Quotient."""
    if b == 0:
        raise ToolError("Cannot divide by zero")
    return state, _finite(a / b)


def percentage(state: State, part: float, whole: float) -> tuple[State, Any]:
    """Percentage of the part in the whole."""
    if whole == 0:
        raise ToolError("Whole value cannot be zero")
    return state, _finite(part / whole * 100)


def power(state: State, base: float, exponent: float) -> tuple[State, Any]:
    """Power."""
    try:
        return state, _finite(float(base) ** exponent)
    except (OverflowError, ZeroDivisionError) as error:
        raise ToolError("the result is not a finite real number") from error


def round_number(state: State, number: float, decimal_places: int = 0) -> tuple[State, Any]:
    """Number rounded to fewer decimals."""
    return state, _finite(round(number, decimal_places))


def logarithm(state: State, value: float, base: float, precision: int) -> tuple[State, Any]:
    """Logarithm to any base, with `precision` significant digits."""
    if value <= 0 or base <= 0 or base == 1:
        raise ToolError("a logarithm needs a positive number, and a positive base other than 1")
    return state, _finite(_significant(math.log(value) / math.log(base), precision))


def square_root(state: State, number: float, precision: int) -> tuple[State, Any]:
    """Square root, with `precision` significant digits."""
    if number < 0:
        raise ToolError("Cannot calculate square root of a negative number")
    return state, _finite(_significant(math.sqrt(number), precision))


def _significant(number: float, digits: int) -> float:
    return float(f"{number:.{min(max(digits, 1), 17)}g}")


def sum_values(state: State, numbers: list[float]) -> tuple[State, Any]:
    """Sum of a list."""
    return state, _finite(sum(_some(numbers)))


def mean(state: State, numbers: list[float]) -> tuple[State, Any]:
    """Mean."""
    return state, _finite(sum(_some(numbers)) / len(numbers))


def standard_deviation(state: State, numbers: list[float]) -> tuple[State, Any]:
    """Population standard deviation."""
    return state, _finite(statistics.pstdev(_some(numbers)))


def max_value(state: State, numbers: list[float]) -> tuple[State, Any]:
    """Maximum."""
    return state, _finite(max(_some(numbers)))


def min_value(state: State, numbers: list[float]) -> tuple[State, Any]:
    """Minimum."""
    return state, _finite(min(_some(numbers)))


def _some(numbers: list[float]) -> list[float]:
    if not numbers:
        raise ToolError("the list of numbers is empty")
    return numbers


def si_unit_conversion(state: State, value: float, unit_in: str, unit_out: str) -> tuple[State, Any]:
    """Convert units of length."""
    if unit_in not in _METRES or unit_out not in _METRES:
        raise ToolError(f"Conversion from '{unit_in}' to '{unit_out}' is not supported")
    return state, _finite(value * _METRES[unit_in] / _METRES[unit_out])


def imperial_si_conversion(state: State, value: float, unit_in: str, unit_out: str) -> tuple[State, Any]:
    """Convert between imperial and SI units, with factors of six digits."""
    if unit_in == unit_out:
        return state, _finite(value)
    if (unit_in, unit_out) not in _IMPERIAL:
        raise ToolError(f"Conversion from '{unit_in}' to '{unit_out}' is not supported")
    return state, _finite(value * _IMPERIAL[unit_in, unit_out])


MATHEMATICS = World(
    state_key="MathAPI",
    verify_results=True,
    functions={
        f.__name__: f
        for f in (
            absolute_value, add, subtract, multiply, divide, percentage, power, round_number, logarithm, square_root,
            sum_values, mean, standard_deviation, max_value, min_value, si_unit_conversion, imperial_si_conversion,
        )
    },
)  # fmt: skip
