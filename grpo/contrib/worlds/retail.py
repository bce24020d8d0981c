"""Retail shop of tau2-bench: orders are cancelled, changed, returned and exchanged under its policy.

    state   {"users": {id: {…}}, "orders": {id: {…}}, "products": {id: {"variants": {item id: {…}}}}}

https://github.com/sierra-research/tau2-bench, MIT (the tasks)
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

from grpo.agents.tools import ToolError
from grpo.environments.world import State, World

Node = dict[str, Any]
_REASONS = ("no longer needed", "ordered by mistake")
_OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def _lookup(state: State, table: str, key: str, what: str) -> Node:
    node: Node | None = state[table].get(key)
    if node is None:
        raise ToolError(f"{what} not found")
    return node


def _order(state: State, order_id: str, status: str, doing: str) -> Node:
    order = _lookup(state, "orders", order_id, "Order")
    if order["status"] != status:
        raise ToolError(f"Order {order_id} is {order['status']}; only a {status} one can be {doing}")
    return order


def _variant(state: State, product_id: str, item_id: str) -> Node:
    variant: Node | None = _lookup(state, "products", product_id, "Product")["variants"].get(item_id)
    if variant is None:
        raise ToolError(f"Item {item_id} is not a variant of product {product_id}")
    return variant


def _method(state: State, order: Node, method_id: str) -> Node:
    method: Node | None = _lookup(state, "users", order["user_id"], "User")["payment_methods"].get(method_id)
    if method is None:
        raise ToolError("Payment method not found")
    return method


def _is_gift_card(method: Node) -> bool:
    return bool(method["source"] == "gift_card")


def _pay(method: Node, amount: float) -> None:
    """Take an amount from a gift card, or refund a negative amount. Other methods have no balance."""
    if _is_gift_card(method):
        method["balance"] = round(method["balance"] - amount, 2)


def _cover(method: Node, amount: float) -> None:
    if _is_gift_card(method) and method["balance"] < amount:
        raise ToolError("Insufficient gift card balance")


def _items(order: Node, item_ids: Sequence[str]) -> list[Node]:
    """Items of the order by ids, one for each occurrence of an id."""
    left = list(order["items"])
    taken: list[Node] = []
    for item_id in item_ids:
        item = next((item for item in left if item["item_id"] == item_id), None)
        if item is None:
            raise ToolError(f"Item {item_id} is not in the order so many times")
        left.remove(item)
        taken.append(item)
    return taken


def _swaps(state: State, order: Node, item_ids: Sequence[str], new_ids: Sequence[str]) -> list[tuple[Node, Node]]:
    """Pairs of items and the available variants of the same products that replace them."""
    if len(item_ids) != len(new_ids):
        raise ToolError("The number of items and of new items must be the same")
    pairs = [
        (item, _variant(state, item["product_id"], new_id))
        for item, new_id in zip(_items(order, item_ids), new_ids, strict=True)
    ]
    missing = next((variant["item_id"] for _, variant in pairs if not variant["available"]), None)
    if missing is not None:
        raise ToolError(f"New item {missing} is not available")
    return pairs


def find_user_id_by_email(state: State, email: str) -> tuple[State, Any]:
    """Find a customer by e-mail address."""
    return state, _user(state, lambda user: user["email"].casefold() == email.casefold())


def find_user_id_by_name_zip(state: State, first_name: str, last_name: str, zip: str) -> tuple[State, Any]:
    """Find a customer by name and postal code."""
    name = (first_name.casefold(), last_name.casefold(), zip)

    def same(user: Node) -> bool:
        return name == (
            user["name"]["first_name"].casefold(),
            user["name"]["last_name"].casefold(),
            user["address"]["zip"],
        )

    return state, _user(state, same)


def _user(state: State, same: Callable[[Node], bool]) -> str:
    for user_id, user in state["users"].items():
        if same(user):
            return str(user_id)
    raise ToolError("User not found")


def get_user_details(state: State, user_id: str) -> tuple[State, Any]:
    """Record of a customer."""
    return state, _lookup(state, "users", user_id, "User")


def get_order_details(state: State, order_id: str) -> tuple[State, Any]:
    """Record of an order."""
    return state, _lookup(state, "orders", order_id, "Order")


def get_product_details(state: State, product_id: str) -> tuple[State, Any]:
    """Product with its variants."""
    return state, _lookup(state, "products", product_id, "Product")


def get_item_details(state: State, item_id: str) -> tuple[State, Any]:
    """Variant of a product."""
    for product in state["products"].values():
        if item_id in product["variants"]:
            return state, product["variants"][item_id]
    raise ToolError("Item not found")


def list_all_product_types(state: State) -> tuple[State, Any]:
    """Product ids by name."""
    return state, json.dumps({p["name"]: p["product_id"] for p in state["products"].values()}, sort_keys=True)


def cancel_pending_order(state: State, order_id: str, reason: str) -> tuple[State, Any]:
    """Cancel an order and refund the payment."""
    order = _order(state, order_id, "pending", "cancelled")
    if reason not in _REASONS:
        raise ToolError(f"Invalid reason; use one of {', '.join(_REASONS)}")
    refunds = [{**payment, "transaction_type": "refund"} for payment in order["payment_history"]]
    for refund in refunds:
        _pay(_method(state, order, refund["payment_method_id"]), -refund["amount"])
    order.update(status="cancelled", cancel_reason=reason, payment_history=[*order["payment_history"], *refunds])
    return state, order


def modify_pending_order_items(
    state: State, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
) -> tuple[State, Any]:
    """Replace items by other variants, once; the difference is paid or refunded at once."""
    order = _order(state, order_id, "pending", "modified")
    pairs = _swaps(state, order, item_ids, new_item_ids)
    difference = round(sum(variant["price"] - item["price"] for item, variant in pairs), 2)
    method = _method(state, order, payment_method_id)
    _cover(method, difference)
    _pay(method, difference)
    order["payment_history"].append(_payment("payment" if difference > 0 else "refund", difference, payment_method_id))
    for item, variant in pairs:
        item.update(item_id=variant["item_id"], price=variant["price"], options=variant["options"])
    order["status"] = "pending (item modified)"
    return state, order


def modify_pending_order_payment(state: State, order_id: str, payment_method_id: str) -> tuple[State, Any]:
    """Change the payment method; the former payment is refunded."""
    order = _order(state, order_id, "pending", "modified")
    (first, *further) = order["payment_history"]
    if further or first["transaction_type"] != "payment":
        raise ToolError("There should be exactly one payment for a pending order")
    if first["payment_method_id"] == payment_method_id:
        raise ToolError("The new payment method should be different from the current one")
    method = _method(state, order, payment_method_id)
    _cover(method, first["amount"])
    _pay(method, first["amount"])
    _pay(_method(state, order, first["payment_method_id"]), -first["amount"])
    order["payment_history"] += [
        _payment("payment", first["amount"], payment_method_id),
        _payment("refund", first["amount"], first["payment_method_id"]),
    ]
    return state, order


def _payment(kind: str, amount: float, method_id: str) -> Node:
    return {"transaction_type": kind, "amount": abs(amount), "payment_method_id": method_id}


def modify_pending_order_address(
    shop: State, /, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
) -> tuple[State, Any]:
    """Change the address of an order, also of one whose items were changed."""
    order = _lookup(shop, "orders", order_id, "Order")
    if not order["status"].startswith("pending"):
        raise ToolError(f"Order {order_id} is {order['status']}; only a pending one can be modified")
    order["address"] = _address(address1, address2, city, state, country, zip)
    return shop, order


def modify_user_address(
    shop: State, /, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
) -> tuple[State, Any]:
    """Change the address of a customer."""
    user = _lookup(shop, "users", user_id, "User")
    user["address"] = _address(address1, address2, city, state, country, zip)
    return shop, user


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> Node:
    return {"address1": address1, "address2": address2, "city": city, "country": country, "state": state, "zip": zip}


def return_delivered_order_items(
    state: State, order_id: str, item_ids: list[str], payment_method_id: str
) -> tuple[State, Any]:
    """Return items; the refund goes to the original method or a gift card."""
    order = _order(state, order_id, "delivered", "returned")
    method = _method(state, order, payment_method_id)
    if not _is_gift_card(method) and payment_method_id != order["payment_history"][0]["payment_method_id"]:
        raise ToolError("Payment method should be the original payment method or a gift card")
    _items(order, item_ids)
    order.update(status="return requested", return_items=sorted(item_ids), return_payment_method_id=payment_method_id)
    return state, order


def exchange_delivered_order_items(
    state: State, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
) -> tuple[State, Any]:
    """Exchange items for other variants; the difference is settled on arrival."""
    order = _order(state, order_id, "delivered", "exchanged")
    pairs = _swaps(state, order, item_ids, new_item_ids)
    difference = round(sum(variant["price"] - item["price"] for item, variant in pairs), 2)
    _cover(_method(state, order, payment_method_id), difference)
    order.update(
        status="exchange requested",
        exchange_items=sorted(item_ids),
        exchange_new_items=sorted(new_item_ids),
        exchange_payment_method_id=payment_method_id,
        exchange_price_difference=difference,
    )
    return state, order


def transfer_to_human_agents(state: State, summary: str) -> tuple[State, Any]:
    """Transfer to a human agent; the records stay."""
    return state, "Transfer successful"


def calculate(state: State, expression: str) -> tuple[State, Any]:
    """Evaluate numbers, + - * / and parentheses, rounded to cents."""
    try:
        return state, str(round(_value(ast.parse(expression, mode="eval").body), 2))
    except (SyntaxError, ZeroDivisionError, OverflowError, RecursionError, ValueError) as error:
        raise ToolError(f"Invalid expression: {error}") from error


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.operand))
    raise ValueError("only numbers, + - * / and parentheses")


RETAIL = World(
    functions={
        f.__name__: f
        for f in (
            find_user_id_by_email, find_user_id_by_name_zip, get_user_details, get_order_details, get_product_details,
            get_item_details, list_all_product_types, cancel_pending_order, modify_pending_order_items,
            modify_pending_order_payment, modify_pending_order_address, modify_user_address,
            return_delivered_order_items, exchange_delivered_order_items, transfer_to_human_agents, calculate,
        )
    },
)  # fmt: skip
