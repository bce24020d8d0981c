"""The table of docs/internals/chat.md is what renderers of these templates do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.grpo.renderers.family_templates import FAMILIES
from tests.models.chat_formats import FILE_HEAD, HEAD, file_row, page_rows, published, row


def test_the_page_has_a_row_for_each_template():
    """In the order of their names, all cells filled."""
    rows = page_rows()
    assert [cells[0].partition(",")[0] for cells in rows] == published()
    assert {len(cells) for cells in rows} == {len(HEAD)}


@pytest.mark.parametrize("name", ["gptoss", "llama3_1", "phi3", "qwen3", "qwen3_5_nothink"])
def test_a_row_is_what_a_renderer_of_the_template_does(name: str):
    """Its own and the generic form, one call a turn, a line that is needed, and refused conversations among them."""
    assert row(name) in page_rows()


def test_each_row_of_a_file_has_all_cells_and_a_digest():
    """In the order of the names. A refused template has empty cells."""
    rows = page_rows(of_files=True)
    assert rows
    assert {len(cells) for cells in rows} == {len(FILE_HEAD)}
    assert [len(cells[-1]) for cells in rows] == [12] * len(rows)
    assert [cells[0] for cells in rows] == sorted(cells[0] for cells in rows)


def test_a_row_of_a_file_has_its_form_and_its_digest(tmp_path: Path):
    """A template of Granite 4, which ends a turn with a token of its own."""
    path = tmp_path / "granite-4.0.jinja"
    path.write_text(FAMILIES["Granite 4"].template, encoding="utf-8")
    name, calls, *others, digest = file_row(path)
    assert (name, calls) == ("granite-4.0", "tools and calls in the template's own form (JSON)")
    assert others == ["", "any", "read", "read"]
    (published_row,) = [cells for cells in page_rows(of_files=True) if cells[0] == name]
    assert published_row[1:-1] == (calls, *others)
    assert digest != published_row[-1]
