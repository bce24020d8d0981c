"""The shop's desk: tools that look orders up and replace them."""

from typing import Any

from grpo import TaskEnvironment, ToolError

State = dict[str, Any]


def look_up(state: State, order: str) -> tuple[State, Any]:
    """Look an order up by its number."""
    return state, _record(state, order)


def replace(state: State, order: str) -> tuple[State, Any]:
    """Send the goods of an order again."""
    record = _record(state, order)
    if record.get("replaced"):
        raise ToolError(f"order {order} was replaced already")
    record["replaced"] = True
    return state, {"done": "replaced"}


def _record(state: State, order: str) -> dict[str, Any]:
    if order not in state["orders"]:
        raise ToolError(f"order {order} does not exist")
    return state["orders"][order]


class ShopEnvironment(TaskEnvironment):
    """A customer at the desk. An episode succeeds if its final state is the one that the expected calls lead to."""

    def __init__(self, max_turns: int = 6) -> None:
        super().__init__(functions=[look_up, replace], max_turns=max_turns)
