"""Stock trading of BFCL.

    state   {"account_info": {"account_id", "balance", "binding_card"}, "authenticated", "market_status",
             "orders": {id: {"id", "order_type", "symbol", "price", "amount", "status"}}, "order_counter",
             "stocks": {symbol: {"price", "percent_change", …}}, "watch_list": [symbols], "transaction_history": [{…}]}

If the documents leave something open, it is as the tasks' calls need it, or as simple as possible:

- An order gets the number of the counter. It is open, or pending while the market is closed. It is never executed, so
  it moves no money, but the balance must cover a purchase. Holdings are not counted.
- Orders and money need a login, with any name and password. Stocks and the watchlist do not.
- Tasks that list no orders ask for 12446, a pending one. It is the only pending order that any task describes.
- The market's day is the day of the tasks' own transactions. It is morning while the market is open, else evening.

https://github.com/ShishirPatil/gorilla, Apache-2.0 (the tasks)
"""

from __future__ import annotations

from typing import Any

from grpo.agents.tools import ToolError
from grpo.environments.world import State, World

_SYMBOLS = {
    "alphabet": "ALPH",
    "amazon": "AMZN",
    "apple": "AAPL",
    "microsoft": "MSFT",
    "nvidia": "NVDA",
    "omega industries": "OMEG",
    "quasar ltd.": "QUAS",
    "synex solutions": "SYNX",
    "tesla": "TSLA",
    "zeta corp": "ZETA",
}
"""Companies in the tasks."""
_SECTORS = {"Technology": ("AAPL", "GOOG", "MSFT", "NVDA")}
"""The only sector in the tasks, in the order that they rely on."""
_ORDERS = {
    "12345": {"symbol": "AAPL", "price": 210.65, "num_shares": 10, "status": "Completed"},
    "12446": {"symbol": "GOOG", "price": 2840.34, "num_shares": 5, "status": "Pending"},
}
_DAY = "2024-10-27"
_CLOCK = {"Open": ("10:30 AM", "10:30:00"), "Closed": ("06:30 PM", "18:30:00")}


def _init_state(state: State) -> State:
    """Orders with the documents' field names. The counter is above all existing ids."""
    defaults: State = {
        "account_info": {"account_id": 12345, "balance": 10_000.0, "binding_card": 1974202140965533},
        "authenticated": False,
        "market_status": "Open",
        "orders": dict(_ORDERS),
        "order_counter": 12446,
        "stocks": {},
        "watch_list": [],
        "transaction_history": [],
    }
    state = {**defaults, **state}
    kind = state["orders"].get("order_type", "Buy")  # the tasks write it next to the orders
    state["orders"] = {
        number: {
            "id": int(number),
            "order_type": kind,
            "symbol": order["symbol"],
            "price": order["price"],
            "amount": order["num_shares"],
            "status": order["status"],
        }
        for number, order in state["orders"].items()
        if number != "order_type"
    }
    state["order_counter"] = max([state["order_counter"], *(int(number) + 1 for number in state["orders"])])
    return state


def _logged_in(state: State) -> None:
    if not state["authenticated"]:
        raise ToolError("User not logged in. Please log in to trade.")


def _stock(state: State, symbol: str) -> dict[str, Any]:
    if symbol not in state["stocks"]:
        raise ToolError(f"Stock with symbol '{symbol}' not found.")
    stock: dict[str, Any] = state["stocks"][symbol]
    return stock


def _order(state: State, order_id: int) -> dict[str, Any]:
    _logged_in(state)
    if str(order_id) not in state["orders"]:
        raise ToolError(f"Order with ID {order_id} not found.")
    order: dict[str, Any] = state["orders"][str(order_id)]
    return order


def trading_login(state: State, username: str, password: str) -> tuple[State, Any]:
    """Log in with any name and password."""
    if not username or not password:
        raise ToolError("Username and password must not be empty.")
    if state["authenticated"]:
        return state, {"status": "Already logged in"}
    return {**state, "authenticated": True}, {"status": "Logged in successfully"}


def trading_logout(state: State) -> tuple[State, Any]:
    """Log out."""
    if not state["authenticated"]:
        return state, {"status": "No user is logged in"}
    return {**state, "authenticated": False}, {"status": "Logged out successfully"}


def trading_get_login_status(state: State) -> tuple[State, Any]:
    """Login status."""
    return state, {"status": bool(state["authenticated"])}


def get_current_time(state: State) -> tuple[State, Any]:
    """Time of day."""
    return state, {"current_time": _CLOCK[state["market_status"]][0]}


def get_account_info(state: State) -> tuple[State, Any]:
    """Id, balance and card of the account."""
    _logged_in(state)
    return state, dict(state["account_info"])


def fund_account(state: State, amount: float) -> tuple[State, Any]:
    """Deposit an amount."""
    return _move(state, amount, "deposit", "Account funded successfully")


def withdraw_funds(state: State, amount: float) -> tuple[State, Any]:
    """Withdraw an amount that the balance covers."""
    return _move(state, amount, "withdrawal", "Funds withdrawn successfully")


def _move(state: State, amount: float, kind: str, status: str) -> tuple[State, Any]:
    _logged_in(state)
    if amount <= 0:
        raise ToolError(f"The amount of a {kind} must be above 0.")
    account = state["account_info"]
    if kind == "withdrawal" and amount > account["balance"]:
        raise ToolError(f"Insufficient funds: the balance is {account['balance']}.")
    account["balance"] = round(account["balance"] + (amount if kind == "deposit" else -amount), 2)
    timestamp = f"{_DAY} {_CLOCK[state['market_status']][1]}"
    state["transaction_history"].append({"type": kind, "amount": amount, "timestamp": timestamp})
    return state, {"status": status, "new_balance": account["balance"]}


def get_transaction_history(
    state: State, start_date: str | None = None, end_date: str | None = None
) -> tuple[State, Any]:
    """Deposits and withdrawals, both dates included."""
    _logged_in(state)
    first = "" if start_date in (None, "", "None") else str(start_date)
    last = "9999" if end_date in (None, "", "None") else str(end_date)
    moves = [dict(move) for move in state["transaction_history"] if first <= move["timestamp"][:10] <= last]
    return state, {"transaction_history": moves}


def place_order(state: State, order_type: str, symbol: str, price: float, amount: int) -> tuple[State, Any]:
    """Place an order with the next id."""
    _logged_in(state)
    _stock(state, symbol)
    if order_type not in ("Buy", "Sell"):
        raise ToolError(f"Order type '{order_type}' is unknown; use Buy or Sell.")
    if price <= 0 or amount <= 0:
        raise ToolError("Price and amount of an order must be above 0.")
    if order_type == "Buy" and price * amount > state["account_info"]["balance"]:
        raise ToolError(f"Insufficient funds: the order is over the balance of {state['account_info']['balance']}.")
    number = state["order_counter"]
    status = "Open" if state["market_status"] == "Open" else "Pending"
    order = {"order_type": order_type, "symbol": symbol, "price": price, "amount": amount, "status": status}
    state["orders"][str(number)] = {"id": number, **order}
    state["order_counter"] += 1
    return state, {"order_id": number, **{name: order[name] for name in ("order_type", "status", "price", "amount")}}


def get_order_details(state: State, order_id: int) -> tuple[State, Any]:
    """One order."""
    return state, dict(_order(state, order_id))


def get_order_history(state: State) -> tuple[State, Any]:
    """Ids of all orders."""
    _logged_in(state)
    return state, {"order_history": [int(number) for number in state["orders"]]}


def cancel_order(state: State, order_id: int) -> tuple[State, Any]:
    """Cancel an order that is not completed or cancelled."""
    order = _order(state, order_id)
    if order["status"] in ("Completed", "Cancelled"):
        raise ToolError(f"Order with ID {order_id} is already {order['status'].lower()}.")
    order["status"] = "Cancelled"
    return state, {"order_id": order_id, "status": "Cancelled"}


def get_stock_info(state: State, symbol: str) -> tuple[State, Any]:
    """Price, change, volume and moving averages of a stock."""
    return state, dict(_stock(state, symbol))


def get_symbol_by_name(state: State, name: str) -> tuple[State, Any]:
    """Symbol of a company."""
    symbol = _SYMBOLS.get(name.lower())
    return state, {"symbol": symbol if symbol in state["stocks"] else "Stock not found"}


def get_available_stocks(state: State, sector: str) -> tuple[State, Any]:
    """Stocks of a sector."""
    if sector not in _SECTORS:
        raise ToolError(f"Sector '{sector}' not found; there is {', '.join(_SECTORS)}.")
    return state, {"stock_list": [symbol for symbol in _SECTORS[sector] if symbol in state["stocks"]]}


def filter_stocks_by_price(state: State, stocks: list[str], min_price: float, max_price: float) -> tuple[State, Any]:
    """Stocks in a price range, both ends included."""
    matching = [symbol for symbol in stocks if min_price <= _stock(state, symbol)["price"] <= max_price]
    return state, {"filtered_stocks": matching}


def notify_price_change(state: State, stocks: list[str], threshold: float) -> tuple[State, Any]:
    """Stocks that moved by at least this many percent, up or down."""
    moved = [symbol for symbol in stocks if abs(_stock(state, symbol)["percent_change"]) >= threshold]
    if not moved:
        return state, {"notification": "No significant price changes in the selected stocks."}
    return state, {"notification": f"Stocks {', '.join(moved)} have significant price changes."}


def get_watchlist(state: State) -> tuple[State, Any]:
    """Watched stocks."""
    return state, {"watchlist": list(state["watch_list"])}


def add_to_watchlist(state: State, stock: str) -> tuple[State, Any]:
    """Add a stock to the watchlist once."""
    _stock(state, stock)
    if stock not in state["watch_list"]:
        state["watch_list"].append(stock)
    return state, {"watchlist": list(state["watch_list"])}


def remove_stock_from_watchlist(state: State, symbol: str) -> tuple[State, Any]:
    """Remove a stock from the watchlist."""
    if symbol not in state["watch_list"]:
        raise ToolError(f"Stock {symbol} is not in the watchlist.")
    state["watch_list"].remove(symbol)
    return state, {"status": f"Stock {symbol} removed from watchlist successfully."}


TRADING = World(
    state_key="TradingBot",
    init_state=_init_state,
    verify_results=True,
    functions={
        f.__name__: f
        for f in (
            trading_login, trading_logout, trading_get_login_status, get_current_time, get_account_info, fund_account,
            withdraw_funds, get_transaction_history, place_order, get_order_details, get_order_history, cancel_order,
            get_stock_info, get_symbol_by_name, get_available_stocks, filter_stocks_by_price, notify_price_change,
            get_watchlist, add_to_watchlist, remove_stock_from_watchlist,
        )
    },
)  # fmt: skip
