"""The travel agency; fares, balances and ids are worked out by hand or stand in the tasks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.grpo.contrib.worlds.bfcl import Call, failed_calls, run_calls

FLIGHT: Call = (
    "book_flight",
    {
        "access_token": "t",
        "card_id": "c",
        "travel_date": "2026-11-10",
        "travel_from": "SFO",
        "travel_to": "LAX",
        "travel_class": "business",
    },
)
LOGIN: Call = (
    "authenticate_travel",
    {
        "client_id": "i",
        "client_secret": "s",
        "refresh_token": "r",
        "grant_type": "read_write",
        "user_first_name": "Ann",
        "user_last_name": "Lee",
    },
)


def _agency(**more: Any) -> dict[str, Any]:
    """Ann has a token, and a card with 1000 dollars."""
    return {
        "access_token": "t",
        "user_first_name": "Ann",
        "user_last_name": "Lee",
        "credit_card_list": {"c": {"balance": 1000.0}},
        "budget_limit": 100.0,
        **more,
    }


def _cost(start: str, end: str, travel_class: str, day: str = "2026-11-10") -> Call:
    return (
        "get_flight_cost",
        {"travel_from": start, "travel_to": end, "travel_date": day, "travel_class": travel_class},
    )


def _insure(booking_id: str, cost: float = 187.5, card_id: str = "c") -> Call:
    arguments = {"access_token": "t", "insurance_type": "travel", "insurance_cost": cost}
    return ("purchase_insurance", {**arguments, "booking_id": booking_id, "card_id": card_id})


def test_a_booking_is_paid_by_card_and_refunded_on_cancellation():
    """1000 − 400 = 600, over a budget of 100; then 1000 again, and a second cancellation fails."""
    cancel: Call = ("cancel_booking", {"access_token": "t", "booking_id": "3426812"})
    balance: Call = ("get_credit_card_balance", {"access_token": "t", "card_id": "c"})
    history: Call = ("get_booking_history", {"access_token": "t"})
    results, state = run_calls("TravelAPI", _agency(), FLIGHT, balance, history, cancel, cancel, balance)
    assert (results[0]["booking_id"], results[0]["booking_status"]) == ("3426812", True)
    assert len(results[0]["transaction_id"]) == 8
    assert results[1] == {"card_balance": 600.0}
    assert results[2]["booking_history"]["3426812"]["travel_cost"] == 400
    assert failed_calls(results) == [False] * 4 + [True, False]
    assert (results[5], state["booking_record"]) == ({"card_balance": 1000.0}, {})


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"access_token": "x"}, "token"),
        ({"card_id": "x"}, "not registered"),
        ({"travel_from": "San Francisco"}, "No flight from San Francisco"),
        ({"travel_to": "SFO"}, "No flight from SFO to SFO"),
        ({"travel_date": "next week"}, "use YYYY-MM-DD"),
        ({"travel_class": "steerage"}, "use economy, business, first"),
        ({"travel_to": "CIA"}, "2800.0 is over the balance"),
    ],
)
def test_a_flight_that_cannot_be_booked_is_refused(changed: dict[str, Any], reason: str):
    """Nothing is booked or paid."""
    (result,), state = run_calls("TravelAPI", _agency(), (FLIGHT[0], {**FLIGHT[1], **changed}))
    assert reason in result["error"]
    assert (state["booking_record"], state["credit_card_list"]["c"]["balance"]) == ({}, 1000.0)


def test_ids_are_those_that_the_tasks_use():
    """The first booking and its insurance; after a login another token, card and booking; a first card."""
    card: dict[str, Any] = {
        "card_number": "1",
        "expiration_date": "08/2027",
        "cardholder_name": "Ann",
        "card_verification_number": 1,
    }
    booked, _ = run_calls("TravelAPI", _agency(), FLIGHT, _insure("3426812"))
    assert booked[1]["insurance_id"] == "498276044"
    logged_in, _ = run_calls("TravelAPI", _agency(), LOGIN, (FLIGHT[0], {**FLIGHT[1], "access_token": "251675"}))
    assert (logged_in[0]["access_token"], logged_in[1]["booking_id"]) == ("251675", "5431449")
    later, _ = run_calls("TravelAPI", _agency(), LOGIN, ("register_credit_card", {**card, "access_token": "251675"}))
    assert later[1] == {"card_id": "391310425148"}
    first, state = run_calls("TravelAPI", _agency(), ("register_credit_card", {**card, "access_token": "t"}))
    assert first == [{"card_id": "262919693687"}]
    assert state["credit_card_list"]["262919693687"] == {**card, "balance": 10_000.0}


def test_a_login_needs_a_known_grant_and_replaces_the_token():
    """The old token is invalid."""
    results, state = run_calls(
        "TravelAPI", _agency(),
        (LOGIN[0], {**LOGIN[1], "grant_type": "all"}), LOGIN, ("get_booking_history", {"access_token": "t"}),
        ("get_booking_history", {"access_token": "251675"}), ("travel_get_login_status", {}),
    )  # fmt: skip
    assert failed_calls(results) == [True, False, True, False, False]
    assert results[4] == {"status": True}
    assert (state["access_token"], state["token_scope"]) == ("251675", "read_write")


def test_fares_are_those_of_the_tasks_and_in_proportion():
    """JFK and LAX: 2400 in business, so 1200 and 3600; JFK–RMS 420; an unknown 300, in first 900."""
    results, _ = run_calls(
        "TravelAPI", {},
        _cost("LAX", "JFK", "business"), _cost("JFK", "LAX", "economy"), _cost("JFK", "LAX", "first", "2026-01-02"),
        _cost("RMS", "JFK", "economy"), _cost("JFK", "PEK", "first"), _cost("JFK", "XXX", "first"),
    )  # fmt: skip
    assert [result.get("travel_cost_list") for result in results] == [[2400], [1200], [3600], [420], [900], None]


def test_an_insurance_and_a_booking_share_an_invoice():
    """187.50 more are paid; what is neither booked nor insured has no invoice."""
    invoice = ("retrieve_invoice", {"access_token": "t"})
    results, state = run_calls(
        "TravelAPI", _agency(),
        FLIGHT, _insure("3426812"), _insure("x"), _insure("3426812", 5000.0), _insure("3426812", -1.0),
        (invoice[0], {**invoice[1], "booking_id": "3426812", "insurance_id": "498276044"}),
        (invoice[0], {**invoice[1], "booking_id": "3426812"}), (invoice[0], {**invoice[1], "booking_id": "x"}),
        (invoice[0], {**invoice[1], "insurance_id": "x"}), invoice,
    )  # fmt: skip
    assert state["credit_card_list"]["c"]["balance"] == 412.5  # 1000 − 400 − 187.50
    assert failed_calls(results) == [False, False, True, True, True, False, False, True, True, True]
    both, flight = results[5]["invoice"], results[6]["invoice"]
    assert (both["insurance_cost"], both["travel_cost"], flight["travel_cost"]) == (187.5, 400, 400)
    assert "insurance_cost" not in flight


def test_a_booking_without_a_cost_on_record_is_cancelled_without_a_refund():
    """The tasks' own bookings have other parts."""
    start = _agency(booking_record={"b": {"flight_number": "LA1", "cost": 50.0}})
    results, state = run_calls("TravelAPI", start, ("cancel_booking", {"access_token": "t", "booking_id": "b"}))
    assert results == [{"cancel_status": True}]
    assert (state["booking_record"], state["credit_card_list"]["c"]["balance"]) == ({}, 1000.0)


@pytest.mark.parametrize(
    ("base", "target", "value", "exchanged"),
    [
        ("RMB", "USD", 20000, 2857.14),
        ("RMB", "USD", 50000, 7142.86),
        ("GBP", "USD", 15400, 22000),
        ("USD", "RMB", 420, 2940),
        ("EUR", "USD", 150, 187.5),
        ("GBP", "EUR", 7, 8),
    ],
)
def test_money_is_exchanged_as_in_the_tasks(base: str, target: str, value: float, exchanged: float):
    """A dollar is 7 RMB, 0.7 GBP and 0.8 EUR."""
    arguments = {"base_currency": base, "target_currency": target, "value": value}
    assert run_calls("TravelAPI", {}, ("compute_exchange_rate", arguments))[0] == [{"exchanged_value": exchanged}]


@pytest.mark.parametrize(
    ("changed", "verified"),
    [({}, True), ({"last_name": "Low"}, False), ({"date_of_birth": "1950"}, False), ({"passport_number": ""}, False)],
)
def test_a_traveler_is_verified_as_the_logged_in_user(changed: dict[str, str], verified: bool):
    """A failure gives its reason."""
    traveler = {"first_name": "Ann", "last_name": "Lee", "date_of_birth": "1950-01-31", "passport_number": "P1"}
    (result,), _ = run_calls("TravelAPI", _agency(), ("verify_traveler_information", {**traveler, **changed}))
    assert result["verification_status"] is verified
    assert ("verification_failure" in result) is not verified


def test_places_budgets_and_the_support():
    """Airports run from Rivermist to Boston; a limit is kept; the support knows its bookings."""
    results, state = run_calls(
        "TravelAPI", _agency(booking_record={"b": {}}),
        ("list_all_airports", {}), ("get_nearest_airport_by_city", {"location": "Chicago"}),
        ("get_nearest_airport_by_city", {"location": "Bonn"}), ("get_budget_fiscal_year", {}),
        ("set_budget_limit", {"access_token": "t", "budget_limit": 2857.14}),
        ("set_budget_limit", {"access_token": "x", "budget_limit": 1}),
        ("set_budget_limit", {"access_token": "t", "budget_limit": -1}),
        ("contact_customer_support", {"booking_id": "b", "message": "Help."}),
        ("contact_customer_support", {"booking_id": "x", "message": "Help."}),
        ("contact_customer_support", {"booking_id": "b", "message": ""}),
        ("compute_exchange_rate", {"base_currency": "DM", "target_currency": "USD", "value": 1}),
        ("get_all_credit_cards", {}),
    )  # fmt: skip
    airports = results[0]["airports"]
    assert (airports[:2], airports[-1], len(set(airports))) == (["RMS", "SBK"], "BOS", 23)
    assert results[1] == {"nearest_airport": "ORD"}
    assert failed_calls(results) == [False, False, True, False, False, True, True, False, True, True, True, False]
    assert state["budget_limit"] == 2857.14
    assert results[11] == {"credit_card_list": {"c": {"balance": 1000.0}}}
