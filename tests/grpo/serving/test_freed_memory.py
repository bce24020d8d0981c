"""Memory that the C library keeps."""

from __future__ import annotations

import psutil

from grpo.serving.freed_memory import return_freed_memory


def test_freed_blocks_between_others_are_given_back():
    """200 MB in blocks of 100 kB, of which every hundredth stays: the pages of the others leave the resident set."""
    blocks = [bytes([1]) * 100_000 for _ in range(2_000)]
    kept = blocks[::100]
    before = psutil.Process().memory_info().rss
    del blocks
    return_freed_memory()
    assert before - psutil.Process().memory_info().rss > 150e6
    assert len(kept) == 20
