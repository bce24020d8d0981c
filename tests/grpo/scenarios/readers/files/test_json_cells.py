"""Lists and objects in cells, as JSON, as pandas writes them, and as NumPy prints them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from grpo.scenarios.readers.files.json_cells import cell_value

VALUES = [
    [{"role": "user", "content": "It's \"late\", isn't it?\n\\d é 😀"}, {"role": "assistant", "content": None}],
    {"name": "look_up", "parameters": {"type": "object", "required": []}, "strict": True, "n": [1, -2.5, 1e300]},
    ["a", 'b"', "c'", ""],
    [],
    {},
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_a_cell_that_pandas_wrote_is_read_as_it_was(value: Any, tmp_path: Path):
    """`to_csv` writes lists and objects as Python prints them."""
    pd.DataFrame({"cell": [value]}).to_csv(tmp_path / "a.csv", index=False)
    (cell,) = pd.read_csv(tmp_path / "a.csv")["cell"]
    assert cell_value(cell, "cell is") == value
    assert cell_value(f" {cell}\n", "cell is") == value


@pytest.mark.parametrize(
    "text",
    [
        str(np.array(["a", "b"])),  # Python reads ['a' 'b'] as one text
        str(np.array([{"role": "user"}, {"role": "assistant"}])),
        "['a', 'b'",
        "{'a': b'x'}",
        "{'a', 'b'}",
        "['a', __import__('os')]",
        "['a',  'b']",  # nothing prints two spaces
        "['a', nan]",
        "['" + "a" * 1_000_000 + "']",
        "[" + "[" * 10_000,
        "{'a': " * 10_000,
        "[" + "-" * 10_000 + "1]",
    ],
)
def test_what_nobody_printed_is_refused(text: str):
    """Nothing is guessed."""
    with pytest.raises(ValueError, match=r"^column tools is not JSON: .* at column \d+"):
        cell_value(text, "column tools is")


def test_the_advice_is_to_write_json():
    """For cells that were printed."""
    with pytest.raises(ValueError, match=r"not JSON: .*\. What Python or NumPy .* with json\.dumps$"):
        cell_value("[{'a': 1}\n {'a': 2}]", "cells are")
    with pytest.raises(ValueError, match=r"not JSON: expected .* at column 2$"):
        cell_value("[a]", "cells are")
