"""Layout of docs/internals/models.md."""

from __future__ import annotations

from pathlib import Path

from tests.models.page import PAGE, Row, keep, render

EXACT = {"rollout": (2e-6, 3e-6), "learner": (0.0, 1e-4), "LoRA": (4e-6,)}
ROWS = [
    Row(family="llama", path="flat", differences=EXACT, adapted=28),
    Row(family="bamba", path="padded", differences={**EXACT, "gradient": (2e-4, 1e-6)}),
    Row(family="afmoe", path="flat", differences=EXACT, errors={"MLflow": "KeyError: a"}),
    Row(family="xlnet", refusal="not causal"),
]


def _page() -> str:
    return render(ROWS, {"gemma3n": "needs timm"}, version="5.23", measured="one machine")


def test_a_row_has_the_differences_of_its_aspects():
    """Together / one at a time, 0 as 0, adapted layers before the difference; empty where nothing was examined."""
    assert "| llama | flat | 2e-6 / 3e-6 | 0 / 1e-4 |  |  |  | 28: 4e-6 |" in _page()


def test_what_is_not_exact_is_bold():
    """Above 1e-4, and an error, whose text follows the table."""
    page = _page()
    assert "| **2e-4** / 1e-6 |" in page
    assert "| **error** |" in page
    assert "- afmoe: MLflow: KeyError: a" in page
    assert "- xlnet: not causal" in page
    assert "- gemma3n: needs timm" in page


def test_families_without_a_row_are_named():
    """A page of a survey that was cut short does not read as a whole one."""
    assert "\nolmo, " in _page() or ", olmo, " in _page()
    assert ", llama, " not in _page()


def test_families_are_counted_by_path():
    """One is exact, one is refused, two are not exact; a variant is counted beside its family."""
    page = _page()
    assert "1 are exact on the path flat, 1 are refused, 2 differ or fail. 1 families are not built." in page
    assert "4 models, 0 of them for text and other inputs" in page


def test_rows_are_in_order_of_their_names():
    """Whatever the order of the examination."""
    page = _page()
    places = [page.index(f"| {name} |") for name in ("afmoe", "bamba", "llama", "xlnet")]
    assert places == sorted(places)


def test_a_family_that_is_examined_again_replaces_its_row(tmp_path: Path):
    """The others stay."""
    for row in (*ROWS, Row(family="llama", path="padded", differences=EXACT, adapted=3)):
        keep(row, {}, version="5.23", measured="one machine", folder=tmp_path)
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert page.count("| llama |") == 1
    assert "| llama | padded |" in page
    assert "| bamba | padded |" in page
