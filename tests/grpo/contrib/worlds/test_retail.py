from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from grpo.agents.tools import ToolError
from grpo.config.environments import TaskSettings
from grpo.contrib.datasets.tau2_bench import read_tau2_bench
from grpo.contrib.worlds.retail import RETAIL
from grpo.environments.catalog import make_environment
from grpo.environments.task import TaskEnvironment
from grpo.messages import Message, ToolCall
from grpo.scenario import Scenario
from grpo.trajectories import Outcome
from tests.places import PUBLISHED

FOLDER = PUBLISHED / "tau2_bench"
published = pytest.mark.skipif(not FOLDER.exists(), reason=f"no published tasks at {FOLDER}")


def _shop(status: str = "pending", balance: float = 50.0) -> dict[str, Any]:
    """One customer with a gift card and a credit card, who paid a 30.00 lamp of two by card."""
    variants = {
        "red": {"item_id": "red", "price": 30.0, "available": True, "options": {"colour": "red"}},
        "blue": {"item_id": "blue", "price": 42.5, "available": True, "options": {"colour": "blue"}},
        "gone": {"item_id": "gone", "price": 10.0, "available": False, "options": {}},
    }
    lamp = {"name": "Lamp", "product_id": "lamp", "item_id": "red", "price": 30.0, "options": {"colour": "red"}}
    return {
        "users": {
            "ann": {
                "user_id": "ann",
                "name": {"first_name": "Ann", "last_name": "Lee"},
                "email": "ann@example.com",
                "address": {"zip": "123"},
                "orders": ["#1"],
                "payment_methods": {
                    "gift": {"source": "gift_card", "id": "gift", "balance": balance},
                    "card": {"source": "credit_card", "id": "card"},
                },
            }
        },
        "orders": {
            "#1": {
                "order_id": "#1",
                "user_id": "ann",
                "status": status,
                "address": {},
                "items": [lamp],
                "payment_history": [{"transaction_type": "payment", "amount": 30.0, "payment_method_id": "card"}],
            }
        },
        "products": {"lamp": {"name": "Lamp", "product_id": "lamp", "variants": variants}},
    }


def _do(tool: str, shop: dict[str, Any], /, **arguments: Any) -> Any:
    function: Callable[..., Any] = RETAIL.functions[tool]
    return function(shop, **arguments)


def test_changing_an_item_settles_the_difference():
    """42.50 − 30.00 = 12.50 leaves 37.50 on the gift card; a second change is refused."""
    change = {"order_id": "#1", "item_ids": ["red"], "new_item_ids": ["blue"], "payment_method_id": "gift"}
    shop, order = _do("modify_pending_order_items", _shop(), **change)
    assert shop["users"]["ann"]["payment_methods"]["gift"]["balance"] == 37.5
    assert order["payment_history"][-1] == {
        "transaction_type": "payment",
        "amount": 12.5,
        "payment_method_id": "gift",
    }
    assert (order["items"][0]["item_id"], order["items"][0]["price"]) == ("blue", 42.5)
    with pytest.raises(ToolError, match="only a pending one can be modified"):
        _do("modify_pending_order_items", shop, **change)


@pytest.mark.parametrize(
    ("tool", "status", "arguments", "reason"),
    [
        ("cancel_pending_order", "delivered", {"reason": "no longer needed"}, "is delivered; only a pending"),
        ("cancel_pending_order", "pending", {"reason": "bored"}, "Invalid reason"),
        ("modify_pending_order_items", "pending", {"new_item_ids": ["gone"]}, "gone is not available"),
        ("modify_pending_order_items", "pending", {"new_item_ids": ["x"]}, "x is not a variant of product lamp"),
        ("modify_pending_order_items", "pending", {"new_item_ids": []}, "must be the same"),
        ("modify_pending_order_items", "pending", {"item_ids": ["red"] * 2, "new_item_ids": ["blue"] * 2}, "so many"),
        ("exchange_delivered_order_items", "delivered", {"payment_method_id": "unknown"}, "Payment method not found"),
        ("modify_pending_order_payment", "pending", {"payment_method_id": "card"}, "different from the current"),
    ],
)
def test_the_shop_refuses_violations_of_the_policy(tool: str, status: str, arguments: dict[str, Any], reason: str):
    """The shop stays, but for the copy that the function gets."""
    defaults: dict[str, dict[str, Any]] = {
        "cancel_pending_order": {},
        "modify_pending_order_payment": {},
        "modify_pending_order_items": {"item_ids": ["red"], "new_item_ids": ["blue"], "payment_method_id": "gift"},
        "exchange_delivered_order_items": {"item_ids": ["red"], "new_item_ids": ["blue"]},
    }
    with pytest.raises(ToolError, match=reason):
        _do(tool, _shop(status), order_id="#1", **{**defaults[tool], **arguments})


def test_a_gift_card_must_cover_what_it_pays():
    """5 do not cover 12.50."""
    with pytest.raises(ToolError, match="Insufficient"):
        _do(
            "exchange_delivered_order_items",
            _shop("delivered", balance=5.0),
            order_id="#1",
            item_ids=["red"],
            new_item_ids=["blue"],
            payment_method_id="gift",
        )


def test_cancelling_refunds_the_payment():
    """Onto the gift card at once: 50 − 30 + 30."""
    shop, _ = _do("modify_pending_order_payment", _shop(), order_id="#1", payment_method_id="gift")
    assert shop["users"]["ann"]["payment_methods"]["gift"]["balance"] == 20.0
    paid = copy.deepcopy(shop)
    paid["orders"]["#1"]["payment_history"] = paid["orders"]["#1"]["payment_history"][1:2]
    shop, order = _do("cancel_pending_order", paid, order_id="#1", reason="no longer needed")
    assert shop["users"]["ann"]["payment_methods"]["gift"]["balance"] == 50.0
    assert (order["status"], order["cancel_reason"]) == ("cancelled", "no longer needed")


@pytest.mark.parametrize(("method", "allowed"), [("card", True), ("gift", True), ("other", False)])
def test_a_return_is_refunded_to_the_original_method_or_a_gift_card(method: str, allowed: bool):
    """Another card of the same customer is refused."""
    shop = _shop("delivered")
    shop["users"]["ann"]["payment_methods"]["other"] = {"source": "paypal", "id": "other"}
    arguments = {"order_id": "#1", "item_ids": ["red"], "payment_method_id": method}
    if allowed:
        _, order = _do("return_delivered_order_items", shop, **arguments)
        assert (order["status"], order["return_items"]) == ("return requested", ["red"])
    else:
        with pytest.raises(ToolError, match="original payment method"):
            _do("return_delivered_order_items", shop, **arguments)


def test_customers_are_found_in_either_case():
    """By address or by name and postal code; the code must be right."""
    assert _do("find_user_id_by_email", _shop(), email="ANN@example.com")[1] == "ann"
    assert _do("find_user_id_by_name_zip", _shop(), first_name="ann", last_name="LEE", zip="123")[1] == "ann"
    with pytest.raises(ToolError, match="User not found"):
        _do("find_user_id_by_name_zip", _shop(), first_name="Ann", last_name="Lee", zip="124")


@pytest.mark.parametrize(("text", "result"), [("2 + 3 * 4", "14.0"), ("(10.005 - 5) / 2", "2.5"), ("-(1)", "-1.0")])
def test_expressions_are_evaluated_without_running_code(text: str, result: str):
    """Precedence, parentheses, signs; rounded to cents."""
    assert _do("calculate", {}, expression=text)[1] == result


@pytest.mark.parametrize("text", ["__import__('os')", "2 ** 9", "1/0", "True + 1", "1 +", "'a'"])
def test_an_invalid_expression_is_refused(text: str):
    """Names, powers, text and truth values among them."""
    with pytest.raises(ToolError, match="Invalid expression"):
        _do("calculate", {}, expression=text)


@published
def test_the_published_calls_run_in_every_retail_task():
    """114 tasks, 550 calls. 18 are refused, as on the whole database: customers and orders that do not exist among
    them, asked for on purpose; of the calls that change the shop two exchanges, and an address that it already has."""

    async def run() -> tuple[int, int, Counter[str]]:
        world, calls, refused = _world(), 0, Counter[str]()
        scenarios = _scenarios()
        for scenario in scenarios:
            async for step in world.replay(scenario):
                calls += 1
                if isinstance(step.result, dict) and "error" in step.result:
                    refused[step.call.name] += 1
        return len(scenarios), calls, refused

    tasks, calls, refused = asyncio.run(run())
    assert (tasks, calls) == (114, 550)
    assert refused == {
        "get_product_details": 3,
        "find_user_id_by_email": 5,
        "find_user_id_by_name_zip": 4,
        "get_order_details": 4,
        "exchange_delivered_order_items": 2,
    }


@published
def test_the_published_basis_decides_a_retail_task():
    """The expected calls reach the final state of all 114 tasks: success in 74; in 40 it waits for assertions."""

    async def run() -> Counter[tuple[Any, ...]]:
        outcomes = [await _play(scenario, acting=True) for scenario in _scenarios()]
        return Counter((outcome.success, outcome.unjudged, tuple(outcome.checks.items())) for outcome in outcomes)

    assert asyncio.run(run()) == {
        (True, (), (("end_state", True),)): 74,
        (None, ("NL_ASSERTION",), (("end_state", True),)): 40,
    }


@published
def test_replies_without_calls_do_not_change_the_shop():
    """They miss the final state of tasks in which something had to change."""

    async def run() -> list[bool]:
        world = _world()
        some = [s for s in _scenarios()[:15] if any([step.changed async for step in world.replay(s)])]
        assert len(some) > 5
        return [(await _play(scenario, acting=False)).checks["end_state"] for scenario in some]

    assert not any(asyncio.run(run()))


async def _play(scenario: Scenario, *, acting: bool) -> Outcome:
    """Outcome of the expected calls, or none of them, with all facts communicated."""
    world = _world()
    state = await world.reset(scenario, seed=0)
    for call in scenario.expected.calls if acting else ():
        action = Message(
            role="assistant", content="", tool_calls=(ToolCall(name=call["name"], arguments=call["arguments"]),)
        )
        state = (await world.step(state, action)).state
    words = Message(role="assistant", content=" ".join(("Done.", *scenario.expected.facts)))
    return world.verify((await world.step(state, words)).state)


def _world() -> TaskEnvironment:
    world = make_environment(TaskSettings(kind="task", max_turns=60))
    assert isinstance(world, TaskEnvironment)
    return world


def _scenarios() -> list[Scenario]:
    return [Scenario.model_validate(record.data) for record in read_tau2_bench(FOLDER, "retail")]
