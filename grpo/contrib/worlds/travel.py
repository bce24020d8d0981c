"""Flight bookings of BFCL.

    state   {"access_token", "token_type", "token_expires_in", "token_scope", "user_first_name", "user_last_name",
             "credit_card_list": {id: {…, "balance"}}, "booking_record": {id: {…}}, "insurances": {id: {…}},
             "budget_limit"}

If the documents leave something open, it is as the tasks' calls need it, or as simple as possible:

- Ids and tokens are the numbers of one seeded generator, by their count of digits: token 6, booking 7 and
  transaction 8, insurance 9, card 12. The seed is the only one below a million that gives all ids that the tasks'
  later calls use.
- A flight costs the dollars that a task gives for it, in both directions and on every day. Other classes are in
  proportion to 1, 2 and 3 for economy, business and first. If no task prices a flight, it costs 300 in economy.
- Rates of exchange follow from the amounts of the tasks, others are round. An exchanged amount is rounded to cents.
- A card pays up to its balance, and cancelling refunds a flight to the card on record. A registered card starts with
  10,000. The budget limit is stored, but not enforced, because the tasks book above it.
- Travelers are verified by the name of the logged-in user and a valid date of birth.

https://github.com/ShishirPatil/gorilla, Apache-2.0 (the tasks)
"""

from __future__ import annotations

import random
from datetime import date
from typing import Any

from grpo.agents.tools import ToolError
from grpo.environments.world import State, World

_AIRPORTS = {
    "Rivermist": "RMS",
    "Stonebrook": "SBK",
    "Maplecrest": "MPC",
    "Silverpine": "SVP",
    "Shadowridge": "SHR",
    "London": "LHR",
    "Paris": "CDG",
    "Sunset Valley": "SUV",
    "Oakendale": "OKD",
    "Willowbend": "WLB",
    "Crescent Hollow": "CRH",
    "Autumnville": "AUV",
    "Pinehaven": "PHV",
    "Greenfield": "GFD",
    "San Francisco": "SFO",
    "Los Angeles": "LAX",
    "New York": "JFK",
    "Chicago": "ORD",
    "Beijing": "PEK",
    "Hong Kong": "HKG",
    "Rome": "CIA",
    "Tokyo": "HND",
    "Boston": "BOS",
}
"""Cities in the documents' order, but with Boston last as in a task. The codes come from the tasks."""
_FARES = {
    frozenset({"CRH", "HKG"}): (850, "economy"),
    frozenset({"CRH", "JFK"}): (850, "economy"),
    frozenset({"JFK", "LAX"}): (2400, "business"),
    frozenset({"JFK", "MPC"}): (4700, "first"),
    frozenset({"JFK", "RMS"}): (420, "economy"),
    frozenset({"LAX", "HND"}): (1200, "business"),
    frozenset({"LAX", "SFO"}): (400, "business"),
    frozenset({"SFO", "CIA"}): (2800, "business"),
}
_OTHER_FARE = (300, "economy")
_CLASSES = {"economy": 1, "business": 2, "first": 3}
_PER_DOLLAR = {
    "USD": 1.0,
    "RMB": 7.0,
    "EUR": 0.8,
    "JPY": 110.0,
    "GBP": 0.7,
    "CAD": 1.3,
    "AUD": 1.4,
    "INR": 70.0,
    "RUB": 60.0,
    "BRL": 4.0,
    "MXN": 20.0,
}
"""RMB, EUR and GBP follow from the tasks."""
_SEED = 141053
_NEW_CARD = 10_000.0
_FISCAL_YEAR = "2026"


def _init_state(state: State) -> State:
    """Default: no cards, bookings and access token."""
    defaults: State = {
        "credit_card_list": {},
        "booking_record": {},
        "insurances": {},
        "access_token": None,
        "token_type": None,
        "token_expires_in": None,
        "token_scope": None,
        "user_first_name": None,
        "user_last_name": None,
        "budget_limit": None,
    }
    return {**defaults, **state, "_drawn": []}


def _draw(state: State, digits: int) -> str:
    """Next number of this many digits."""
    state["_drawn"].append(digits)
    generator = random.Random(_SEED)
    return str([generator.randint(10 ** (count - 1), 10**count - 1) for count in state["_drawn"]][-1])


def _check_token(state: State, access_token: str) -> None:
    if not state["access_token"] or access_token != state["access_token"]:
        raise ToolError("Access token is invalid or expired.")


def _card(state: State, card_id: str) -> dict[str, Any]:
    if card_id not in state["credit_card_list"]:
        raise ToolError(f"Card {card_id} is not registered.")
    card: dict[str, Any] = state["credit_card_list"][card_id]
    return card


def _booking(state: State, booking_id: str) -> dict[str, Any]:
    if booking_id not in state["booking_record"]:
        raise ToolError(f"Booking {booking_id} not found.")
    booking: dict[str, Any] = state["booking_record"][booking_id]
    return booking


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _pay(state: State, card_id: str, amount: float) -> None:
    card = _card(state, card_id)
    if amount > card["balance"]:
        raise ToolError(f"Insufficient funds: {amount} is over the balance of card {card_id}.")
    card["balance"] = round(card["balance"] - amount, 2)


def _fare(travel_from: str, travel_to: str, travel_date: str, travel_class: str) -> float:
    strangers = [code for code in (travel_from, travel_to) if code not in _AIRPORTS.values()]
    if strangers or travel_from == travel_to:
        raise ToolError(f"No flight from {travel_from} to {travel_to}; list_all_airports names the airports.")
    if _date(travel_date) is None:
        raise ToolError(f"Travel date '{travel_date}' is invalid; use YYYY-MM-DD.")
    if travel_class not in _CLASSES:
        raise ToolError(f"Travel class '{travel_class}' is unknown; use {', '.join(_CLASSES)}.")
    cost, known = _FARES.get(frozenset({travel_from, travel_to}), _OTHER_FARE)
    return round(cost * _CLASSES[travel_class] / _CLASSES[known], 2)


def authenticate_travel(
    state: State,
    client_id: str,
    client_secret: str,
    refresh_token: str,
    grant_type: str,
    user_first_name: str,
    user_last_name: str,
) -> tuple[State, Any]:
    """Log in with any credentials and get a token."""
    if not (client_id and client_secret and refresh_token):
        raise ToolError("Client id, client secret and refresh token must not be empty.")
    if grant_type not in ("read_write", "read", "write"):
        raise ToolError(f"Grant type '{grant_type}' is unknown; use read_write, read or write.")
    token = {"expires_in": 3600, "access_token": _draw(state, 6), "token_type": "Bearer", "scope": grant_type}
    state |= {
        "access_token": token["access_token"],
        "token_type": token["token_type"],
        "token_expires_in": token["expires_in"],
        "token_scope": grant_type,
        "user_first_name": user_first_name,
        "user_last_name": user_last_name,
    }
    return state, token


def travel_get_login_status(state: State) -> tuple[State, Any]:
    """Login status."""
    return state, {"status": bool(state["access_token"])}


def verify_traveler_information(
    state: State, first_name: str, last_name: str, date_of_birth: str, passport_number: str
) -> tuple[State, Any]:
    """Verify the user's name, date of birth and passport."""
    failure = None
    if (first_name, last_name) != (state["user_first_name"], state["user_last_name"]):
        failure = "The name is not the one of the account."
    elif _date(date_of_birth) is None:
        failure = "The date of birth is invalid; use YYYY-MM-DD."
    elif not passport_number:
        failure = "The passport number is empty."
    verified: dict[str, Any] = {"verification_status": failure is None}
    return state, verified if failure is None else {**verified, "verification_failure": failure}


def list_all_airports(state: State) -> tuple[State, Any]:
    """Codes of all airports."""
    return state, {"airports": list(_AIRPORTS.values())}


def get_nearest_airport_by_city(state: State, location: str) -> tuple[State, Any]:
    """Airport of a city."""
    if location not in _AIRPORTS:
        raise ToolError(f"Location '{location}' not found; there are {', '.join(_AIRPORTS)}.")
    return state, {"nearest_airport": _AIRPORTS[location]}


def get_flight_cost(
    state: State, travel_from: str, travel_to: str, travel_date: str, travel_class: str
) -> tuple[State, Any]:
    """Price of a flight."""
    return state, {"travel_cost_list": [_fare(travel_from, travel_to, travel_date, travel_class)]}


def book_flight(
    state: State,
    access_token: str,
    card_id: str,
    travel_date: str,
    travel_from: str,
    travel_to: str,
    travel_class: str,
) -> tuple[State, Any]:
    """Book a flight and pay by card."""
    _check_token(state, access_token)
    cost = _fare(travel_from, travel_to, travel_date, travel_class)
    _pay(state, card_id, cost)
    booking_id, transaction_id = _draw(state, 7), _draw(state, 8)
    flight = {
        "transaction_id": transaction_id,
        "travel_date": travel_date,
        "travel_from": travel_from,
        "travel_to": travel_to,
        "travel_class": travel_class,
        "travel_cost": cost,
    }
    state["booking_record"][booking_id] = {**flight, "card_id": card_id}
    return state, {
        "booking_id": booking_id,
        "transaction_id": transaction_id,
        "booking_status": True,
        "booking_history": {"booking_id": booking_id, **flight},
    }


def cancel_booking(state: State, access_token: str, booking_id: str) -> tuple[State, Any]:
    """Cancel a booking, with a refund where its card and cost are on record."""
    _check_token(state, access_token)
    booking = _booking(state, booking_id)
    card = state["credit_card_list"].get(booking.get("card_id"))
    if card is not None:
        card["balance"] = round(card["balance"] + booking.get("travel_cost", 0.0), 2)
    del state["booking_record"][booking_id]
    return state, {"cancel_status": True}


def get_booking_history(state: State, access_token: str) -> tuple[State, Any]:
    """All bookings by their ids."""
    _check_token(state, access_token)
    return state, {"booking_history": {name: dict(booking) for name, booking in state["booking_record"].items()}}


def purchase_insurance(
    state: State, access_token: str, insurance_type: str, booking_id: str, insurance_cost: float, card_id: str
) -> tuple[State, Any]:
    """Insure a booking, and pay by card."""
    _check_token(state, access_token)
    _booking(state, booking_id)
    if insurance_cost < 0:
        raise ToolError("The cost of an insurance cannot be below 0.")
    _pay(state, card_id, insurance_cost)
    insurance_id = _draw(state, 9)
    state["insurances"][insurance_id] = {
        "insurance_type": insurance_type,
        "insurance_cost": insurance_cost,
        "booking_id": booking_id,
        "card_id": card_id,
    }
    return state, {"insurance_id": insurance_id, "insurance_status": True}


def retrieve_invoice(
    state: State, access_token: str, booking_id: str | None = None, insurance_id: str | None = None
) -> tuple[State, Any]:
    """Cost of a booking, an insurance or both."""
    _check_token(state, access_token)
    invoice: dict[str, Any] = {}
    if insurance_id not in (None, "", "None"):
        if insurance_id not in state["insurances"]:
            raise ToolError(f"Insurance {insurance_id} not found.")
        invoice |= {"insurance_id": insurance_id, **state["insurances"][insurance_id]}
    if booking_id not in (None, "", "None"):
        invoice |= {"booking_id": booking_id, **_booking(state, str(booking_id))}
    if not invoice:
        raise ToolError("An invoice needs a booking_id or an insurance_id.")
    return state, {"invoice": invoice}


def contact_customer_support(state: State, booking_id: str, message: str) -> tuple[State, Any]:
    """Write to the support about a booking; the state stays."""
    _booking(state, booking_id)
    if not message:
        raise ToolError("The message is empty.")
    return state, {"customer_support_message": f"We have your message on booking {booking_id}, and will write to you."}


def register_credit_card(
    state: State,
    access_token: str,
    card_number: str,
    expiration_date: str,
    cardholder_name: str,
    card_verification_number: int,
) -> tuple[State, Any]:
    """Add a card."""
    _check_token(state, access_token)
    card_id = _draw(state, 12)
    state["credit_card_list"][card_id] = {
        "card_number": card_number,
        "expiration_date": expiration_date,
        "cardholder_name": cardholder_name,
        "card_verification_number": card_verification_number,
        "balance": _NEW_CARD,
    }
    return state, {"card_id": card_id}


def get_all_credit_cards(state: State) -> tuple[State, Any]:
    """All cards by their ids."""
    return state, {"credit_card_list": {name: dict(card) for name, card in state["credit_card_list"].items()}}


def get_credit_card_balance(state: State, access_token: str, card_id: str) -> tuple[State, Any]:
    """Balance of a card."""
    _check_token(state, access_token)
    return state, {"card_balance": _card(state, card_id)["balance"]}


def compute_exchange_rate(state: State, base_currency: str, target_currency: str, value: float) -> tuple[State, Any]:
    """Convert an amount to another currency."""
    strangers = [name for name in (base_currency, target_currency) if name not in _PER_DOLLAR]
    if strangers:
        raise ToolError(f"Currency {', '.join(strangers)} is not known; use {', '.join(_PER_DOLLAR)}.")
    return state, {"exchanged_value": round(value / _PER_DOLLAR[base_currency] * _PER_DOLLAR[target_currency], 2)}


def set_budget_limit(state: State, access_token: str, budget_limit: float) -> tuple[State, Any]:
    """Store a budget limit."""
    _check_token(state, access_token)
    if budget_limit < 0:
        raise ToolError("A budget limit cannot be below 0.")
    return {**state, "budget_limit": budget_limit}, {"budget_limit": budget_limit}


def get_budget_fiscal_year(
    state: State,
    lastModifiedAfter: str | None = None,
    includeRemoved: str | None = None,
) -> tuple[State, Any]:
    """Fiscal year of the budget: always the year of the tasks' travels."""
    return state, {"budget_fiscal_year": _FISCAL_YEAR}


TRAVEL = World(
    state_key="TravelAPI",
    init_state=_init_state,
    verify_results=True,
    functions={
        f.__name__: f
        for f in (
            authenticate_travel, travel_get_login_status, verify_traveler_information, list_all_airports,
            get_nearest_airport_by_city, get_flight_cost, book_flight, cancel_booking, get_booking_history,
            purchase_insurance, retrieve_invoice, contact_customer_support, register_credit_card, get_all_credit_cards,
            get_credit_card_balance, compute_exchange_rate, set_budget_limit, get_budget_fiscal_year,
        )
    },
)  # fmt: skip
