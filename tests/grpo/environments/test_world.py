from __future__ import annotations

from typing import Any

import pytest

from grpo.environments.world import describe_function
from grpo.errors import ConfigError


def test_the_state_is_not_an_argument_of_the_tool():
    """Name and description are the function's."""

    def refund(shop: dict[str, Any], order: str, amount: int = 0) -> tuple[Any, Any]:
        """Pay back."""
        return shop, (order, amount)

    tool = describe_function(refund)
    assert (tool.name, tool.description) == ("refund", "Pay back.")
    assert list(tool.parameters["properties"]) == ["order", "amount"]
    assert tool.parameters["required"] == ["order"]


def test_an_argument_without_an_annotation_is_refused():
    """The model needs its type."""

    def close(state: dict[str, Any], ticket) -> None:  # type: ignore[no-untyped-def]
        """Close."""

    with pytest.raises(ConfigError, match="tool close: argument ticket"):
        describe_function(close)


def test_what_is_not_a_function_is_refused():
    """Such as a tool object of another library, or the definition of a tool as a dict."""
    with pytest.raises(ConfigError, match=r"a tool is a dict, not a function\. Give functions"):
        describe_function({"name": "f"})  # type: ignore[arg-type]
