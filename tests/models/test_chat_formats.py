"""The table of docs/internals/chat.md is what renderers of these templates do."""

from __future__ import annotations

import pytest

from tests.models.chat_formats import HEAD, page_rows, published, row


def test_the_page_has_a_row_for_each_template():
    """In the order of their names, all cells filled."""
    rows = page_rows()
    assert [cells[0].partition(",")[0] for cells in rows] == published()
    assert {len(cells) for cells in rows} == {len(HEAD)}


@pytest.mark.parametrize("name", ["gptoss", "llama3_1", "phi3", "qwen3", "qwen3_5_nothink"])
def test_a_row_is_what_a_renderer_of_the_template_does(name: str):
    """Its own and the generic form, one call a turn, a line that is needed, and refused conversations among them."""
    assert row(name) in page_rows()
