"""Values and depth of JSON texts, counted by hand."""

from __future__ import annotations

import pytest

from grpo.serving.protocol.json_bounds import values_and_depth


@pytest.mark.parametrize(
    ("text", "values", "depth"),
    [
        ("7", 1, 0),
        ("", 1, 0),
        ("[]", 2, 1),
        ("[1, 2, 3]", 4, 1),  # the list, and a value after the bracket and after each of two commas
        ('{"a": [1, 2], "b": "x,y"}', 5, 2),
        (r'["a\"],[{", 1]', 3, 1),
        (r'["a\\", [1]]', 4, 2),  # the string ends after two backslashes
        (r'["a\\\", [1]"]', 2, 1),  # and goes on after three
        ("[" * 5000, 5001, 5000),
        ("[{},{},{}]", 7, 2),
        ('{"é": "日,本", "b": [{}]}', 5, 3),
    ],
)
def test_values_and_depth_are_those_outside_of_strings(text: str, values: int, depth: int):
    """One, one for each bracket that opens and one for each comma; commas and brackets in strings do not count."""
    assert values_and_depth(text.encode()) == (values, depth)
