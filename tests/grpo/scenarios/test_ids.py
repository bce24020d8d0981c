"""Ids that are taken."""

from __future__ import annotations

from grpo.scenarios.ids import SeenIds


def test_an_id_is_free_once() -> None:
    """Whoever comes second learns who was first; ids differ by case."""
    with SeenIds() as taken:
        assert taken.add("order-17", "a.jsonl", 3) is None
        assert taken.add("Order-17", "a.jsonl", 4) is None
        assert taken.add("order-17", "b.jsonl", 1) == "a.jsonl:3"
