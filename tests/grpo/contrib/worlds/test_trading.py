"""The trader's desk; prices, balances and numbers of orders are worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.grpo.contrib.worlds.bfcl import Call, failed_calls, run_calls

BUY: Call = ("place_order", {"order_type": "Buy", "symbol": "AAPL", "price": 200.0, "amount": 5})


def _desk(**more: Any) -> dict[str, Any]:
    """Two stocks, 1000 dollars, and one order that was carried out."""
    return {
        "account_info": {"account_id": 1, "balance": 1000.0, "binding_card": 2},
        "authenticated": True,
        "market_status": "Open",
        "orders": {
            "5": {"symbol": "AAPL", "price": 210.0, "num_shares": 1, "status": "Completed"},
            "order_type": "Buy",
        },
        "order_counter": 9,
        "stocks": {
            "AAPL": {"price": 200.0, "percent_change": -2.0},
            "ZETA": {"price": 150.0, "percent_change": 0.5},
        },
        "watch_list": ["ZETA"],
        "transaction_history": [],
        **more,
    }


def test_an_order_gets_the_number_of_the_counter_and_can_be_cancelled_once():
    """9 comes after 5 and 8; the balance stays, as orders are not executed."""
    results, state = run_calls(
        "TradingBot", _desk(),
        BUY, ("get_order_details", {"order_id": 9}), ("get_order_history", {}), ("cancel_order", {"order_id": 9}),
        ("cancel_order", {"order_id": 9}), ("cancel_order", {"order_id": 5}), ("cancel_order", {"order_id": 7}),
    )  # fmt: skip
    assert results[0] == {"order_id": 9, "order_type": "Buy", "status": "Open", "price": 200.0, "amount": 5}
    assert results[1] == {
        "id": 9, "order_type": "Buy", "symbol": "AAPL", "price": 200.0, "amount": 5, "status": "Open",
    }  # fmt: skip
    assert results[2] == {"order_history": [5, 9]}
    assert results[3] == {"order_id": 9, "status": "Cancelled"}
    assert failed_calls(results) == [False] * 4 + [True] * 3
    assert (state["orders"]["9"]["status"], state["account_info"]["balance"]) == ("Cancelled", 1000.0)


def test_orders_are_read_with_the_field_names_of_the_tasks():
    """A task writes num_shares, and the type of its orders beside them."""
    (order,), _ = run_calls("TradingBot", _desk(), ("get_order_details", {"order_id": 5}))
    assert order == {
        "id": 5, "order_type": "Buy", "symbol": "AAPL", "price": 210.0, "amount": 1, "status": "Completed",
    }  # fmt: skip


def test_a_task_without_orders_has_one_that_is_pending():
    """It is number 12446, so a new one is 12447."""
    start = {name: part for name, part in _desk().items() if name not in ("orders", "order_counter")}
    results, _ = run_calls("TradingBot", start, ("get_order_details", {"order_id": 12446}), BUY)
    assert (results[0]["status"], results[1]["order_id"]) == ("Pending", 12447)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"amount": 6}, "Insufficient funds"),
        ({"symbol": "XTC"}, "not found"),
        ({"order_type": "Hold"}, "use Buy or Sell"),
        ({"price": 0}, "above 0"),
        ({"amount": -1}, "above 0"),
    ],
)
def test_an_invalid_order_is_refused(changed: dict[str, Any], reason: str):
    """6 · 200 = 1200 is more than 1000; nothing is ordered."""
    (result,), state = run_calls("TradingBot", _desk(), (BUY[0], {**BUY[1], **changed}))
    assert reason in result["error"]
    assert list(state["orders"]) == ["5"]


def test_an_order_waits_while_the_market_is_closed():
    """It is pending, and the clock shows the evening."""
    results, _ = run_calls("TradingBot", _desk(market_status="Closed"), BUY, ("get_current_time", {}))
    assert (results[0]["status"], results[1]) == ("Pending", {"current_time": "06:30 PM"})


def test_deposits_and_withdrawals_are_recorded():
    """1000 + 50.5 − 1050 = 0.5; another 1 is not covered, and 0 is not an amount."""
    results, state = run_calls(
        "TradingBot", _desk(),
        ("fund_account", {"amount": 50.5}), ("withdraw_funds", {"amount": 1050}), ("withdraw_funds", {"amount": 1}),
        ("fund_account", {"amount": 0}), ("get_transaction_history", {"start_date": "2024-10-27"}),
        ("get_transaction_history", {"end_date": "2024-10-26"}), ("get_account_info", {}),
    )  # fmt: skip
    assert [result.get("new_balance") for result in results[:4]] == [1050.5, 0.5, None, None]
    assert results[4]["transaction_history"] == state["transaction_history"] == [
        {"type": "deposit", "amount": 50.5, "timestamp": "2024-10-27 10:30:00"},
        {"type": "withdrawal", "amount": 1050, "timestamp": "2024-10-27 10:30:00"},
    ]  # fmt: skip
    assert results[5] == {"transaction_history": []}
    assert results[6] == {"account_id": 1, "balance": 0.5, "binding_card": 2}


def test_orders_and_money_need_a_login_and_the_watchlist_does_not():
    """Logged out: refused; logged in again: done."""
    results, _ = run_calls(
        "TradingBot", _desk(),
        ("trading_logout", {}), ("trading_get_login_status", {}), BUY, ("fund_account", {"amount": 1}),
        ("get_account_info", {}), ("get_order_history", {}), ("cancel_order", {"order_id": 5}),
        ("add_to_watchlist", {"stock": "AAPL"}), ("trading_login", {"username": "ann", "password": "p"}), BUY,
    )  # fmt: skip
    assert results[1] == {"status": False}
    assert failed_calls(results) == [False, False, True, True, True, True, True, False, False, False]


def test_stocks_are_watched_once_and_only_if_known():
    """ZETA is watched already; XTC is not a stock; a removed one cannot be removed again."""
    results, state = run_calls(
        "TradingBot", _desk(),
        ("add_to_watchlist", {"stock": "ZETA"}), ("add_to_watchlist", {"stock": "AAPL"}),
        ("add_to_watchlist", {"stock": "XTC"}), ("remove_stock_from_watchlist", {"symbol": "ZETA"}),
        ("remove_stock_from_watchlist", {"symbol": "ZETA"}), ("get_watchlist", {}),
    )  # fmt: skip
    assert results[0] == {"watchlist": ["ZETA"]}
    assert failed_calls(results) == [False, False, True, False, True, False]
    assert (results[5]["watchlist"], state["watch_list"]) == (["AAPL"], ["AAPL"])


def test_stocks_are_found_by_name_sector_price_and_change():
    """AAPL moved by 2 percent down, ZETA by half a percent up; GOOG is of the sector, but not traded here."""
    both = ["AAPL", "ZETA"]
    results, _ = run_calls(
        "TradingBot", _desk(),
        ("get_symbol_by_name", {"name": "Zeta Corp"}), ("get_symbol_by_name", {"name": "Tesla"}),
        ("get_available_stocks", {"sector": "Technology"}), ("get_available_stocks", {"sector": "Farming"}),
        ("filter_stocks_by_price", {"stocks": both, "min_price": 150, "max_price": 199}),
        ("notify_price_change", {"stocks": both, "threshold": 1}), ("get_stock_info", {"symbol": "ZETA"}),
    )  # fmt: skip
    assert results[:3] == [{"symbol": "ZETA"}, {"symbol": "Stock not found"}, {"stock_list": ["AAPL"]}]
    assert "error" in results[3]
    assert results[4] == {"filtered_stocks": ["ZETA"]}
    assert results[5] == {"notification": "Stocks AAPL have significant price changes."}
    assert results[6] == {"price": 150.0, "percent_change": 0.5}
