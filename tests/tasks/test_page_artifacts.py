from __future__ import annotations

import html

import pytest
from markdown_it import MarkdownIt

from grpo_tasks.page_artifacts import _shown


@pytest.mark.parametrize(
    "text",
    [
        *("- a", "+ a", "-", "---", "1. a", "12) a", "1986. A great year", "-0.5", "0.3", "3.", "1.5 [0.3, 0.5]"),
        *("# a", "> a", "| a | b |", "**a** _b_ `c`", "<img src=x>", "![a](http://x/y)", "a & b", "runs/a_b/c_d.html"),
    ],
)
def test_a_text_is_one_paragraph_with_its_own_characters(text: str) -> None:
    """As a reader of CommonMark and its tables shows it, for which entities stand for characters."""
    shown = MarkdownIt("commonmark").enable("table").render(_shown(text))
    assert html.unescape(shown) == f"<p>{text}</p>\n"
