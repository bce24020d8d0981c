"""Support tickets of BFCL."""

from __future__ import annotations

from tests.grpo.contrib.worlds.bfcl import run_calls


def test_tickets_need_a_login_and_are_closed_once():
    """Priorities go from 1 to 5, and only four fields can be edited."""
    results, state = run_calls(
        "TicketAPI", {},
        ("create_ticket", {"title": "t"}), ("ticket_login", {"username": "ann", "password": "p"}),
        ("create_ticket", {"title": "t", "priority": 6}), ("create_ticket", {"title": "t", "priority": 5}),
        ("edit_ticket", {"ticket_id": 1, "updates": {"owner": "bob"}}),
        ("edit_ticket", {"ticket_id": 1, "updates": {"priority": 2, "title": None}}),
        ("resolve_ticket", {"ticket_id": 1, "resolution": "done"}),
        ("resolve_ticket", {"ticket_id": 1, "resolution": "x"}),
        ("get_user_tickets", {"status": "resolved"}), ("close_ticket", {"ticket_id": 2}),
    )  # fmt: skip
    assert ["error" in result for result in results] == [
        True, False, True, False, True, False, False, True, False, True,
    ]  # fmt: skip
    ticket = {"id": 1, "title": "t", "description": "", "status": "Resolved", "priority": 2, "created_by": "ann",
              "resolution": "done"}  # fmt: skip
    assert results[8] == state["ticket_queue"] == [ticket]


def test_a_ticket_without_a_number_is_not_found():
    """Some tasks queue such tickets."""
    queue = [{"ticket_001": {"title": "t"}}, {"id": 7, "title": "u"}]
    results, _ = run_calls(
        "TicketAPI", {"ticket_queue": queue}, ("get_ticket", {"ticket_id": 7}), ("close_ticket", {"ticket_id": 1})
    )
    assert results == [{"id": 7, "title": "u"}, {"error": "Ticket with ID 1 not found."}]
