"""Support tickets of BFCL.

    state   {"ticket_queue": [{"id", "title", "description", "status", "priority"}], "ticket_counter", "current_user"}

https://github.com/ShishirPatil/gorilla, Apache-2.0 (the tasks)
"""

from __future__ import annotations

from typing import Any

from grpo.agents.tools import ToolError
from grpo.environments.world import State, World

_EDITABLE = ("title", "description", "status", "priority")


def _init_state(state: State) -> State:
    """Default: an empty queue, no login."""
    defaults: State = {"ticket_queue": [], "ticket_counter": 1, "current_user": None}
    return {**defaults, **state}


def _ticket(state: State, ticket_id: int) -> dict[str, Any]:
    for ticket in state["ticket_queue"]:
        if ticket.get("id") == ticket_id:  # some tasks queue tickets without a number
            return ticket
    raise ToolError(f"Ticket with ID {ticket_id} not found.")


def _logged_in(state: State) -> str:
    if not state["current_user"]:
        raise ToolError("User not authenticated. Please log in first.")
    return str(state["current_user"])


def ticket_login(state: State, username: str, password: str) -> tuple[State, Any]:
    """Log in with any name and password."""
    if not username or not password:
        return state, {"success": False}
    return {**state, "current_user": username}, {"success": True}


def ticket_get_login_status(state: State) -> tuple[State, Any]:
    """Login status."""
    return state, {"login_status": bool(state["current_user"])}


def logout(state: State) -> tuple[State, Any]:
    """Log out."""
    return {**state, "current_user": None}, {"success": bool(state["current_user"])}


def create_ticket(state: State, title: str, description: str = "", priority: int = 1) -> tuple[State, Any]:
    """Create a ticket."""
    name = _logged_in(state)
    if not 1 <= priority <= 5:
        raise ToolError("Invalid priority. Priority must be between 1 and 5.")
    ticket = {
        "id": state["ticket_counter"],
        "title": title,
        "description": description,
        "status": "Open",
        "priority": priority,
        "created_by": name,
    }
    state["ticket_queue"].append(ticket)
    state["ticket_counter"] += 1
    return state, dict(ticket)


def get_ticket(state: State, ticket_id: int) -> tuple[State, Any]:
    """One ticket."""
    return state, dict(_ticket(state, ticket_id))


def close_ticket(state: State, ticket_id: int) -> tuple[State, Any]:
    """Close a ticket."""
    return _set_status(state, ticket_id, "Closed")


def resolve_ticket(state: State, ticket_id: int, resolution: str) -> tuple[State, Any]:
    """Resolve a ticket with a resolution."""
    state, result = _set_status(state, ticket_id, "Resolved")
    _ticket(state, ticket_id)["resolution"] = resolution
    return state, result


def _set_status(state: State, ticket_id: int, status: str) -> tuple[State, Any]:
    ticket = _ticket(state, ticket_id)
    if ticket.get("status") == status:
        raise ToolError(f"Ticket with ID {ticket_id} is already {status.lower()}.")
    ticket["status"] = status
    return state, {"status": f"Ticket {ticket_id} has been {status.lower()} successfully."}


def edit_ticket(state: State, ticket_id: int, updates: dict[str, Any]) -> tuple[State, Any]:
    """Change title, description, status or priority."""
    unknown_fields = sorted(set(updates) - set(_EDITABLE))
    if unknown_fields:
        raise ToolError(f"Invalid fields for update: {', '.join(unknown_fields)}")
    _ticket(state, ticket_id).update({name: value for name, value in updates.items() if value is not None})
    return state, {"status": f"Ticket {ticket_id} has been updated successfully."}


def get_user_tickets(state: State, status: str | None = None) -> tuple[State, Any]:
    """Tickets of the logged-in user, optionally of one status."""
    name = _logged_in(state)
    mine = [dict(ticket) for ticket in state["ticket_queue"] if ticket.get("created_by") == name]
    if status in (None, "", "None"):
        return state, mine
    return state, [ticket for ticket in mine if ticket.get("status", "").lower() == str(status).lower()]


TICKETS = World(
    state_key="TicketAPI",
    init_state=_init_state,
    verify_results=True,
    functions={
        f.__name__: f
        for f in (
            ticket_login, ticket_get_login_status, logout, create_ticket, get_ticket, close_ticket, resolve_ticket,
            edit_ticket, get_user_tickets,
        )
    },
)  # fmt: skip
