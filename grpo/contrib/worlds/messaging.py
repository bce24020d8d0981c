"""Workspace messages of BFCL.

    state   {"user_map": {name: id}, "user_count", "current_user": id or None, "inbox": [{receiver id: message}, …]}

https://github.com/ShishirPatil/gorilla, Apache-2.0 (the tasks)
"""

from __future__ import annotations

from typing import Any

from grpo.agents.tools import ToolError
from grpo.environments.world import State, World

_PEOPLE = {"Alice": "USR001", "Bob": "USR002", "Catherine": "USR003", "Daniel": "USR004"}
_FIRST_ID = 10_000


def _init_state(state: State) -> State:
    """Default: four people, no login, no messages."""
    defaults: State = {"user_map": dict(_PEOPLE), "user_count": 4, "current_user": None, "inbox": []}
    state = {**defaults, **state}
    return {**state, "message_count": state.get("message_count", len(state["inbox"]))}


def _logged_in(state: State) -> str:
    if not state["current_user"]:
        raise ToolError("No user is currently logged in.")
    return str(state["current_user"])


def _messages(state: State) -> list[tuple[str, str]]:
    """Receiver and text of each message. Some tasks list several texts of a receiver, or nest them by sender."""
    return [
        (receiver, text) for entry in state["inbox"] for receiver, written in entry.items() for text in _texts(written)
    ]


def _texts(written: Any) -> list[str]:
    if isinstance(written, str):
        return [written]
    return [text for part in (written.values() if isinstance(written, dict) else written) for text in _texts(part)]


def list_users(state: State) -> tuple[State, Any]:
    """List all users."""
    return state, {"user_list": list(state["user_map"])}


def get_user_id(state: State, user: str) -> tuple[State, Any]:
    """Id of a user by name."""
    if user not in state["user_map"]:
        raise ToolError(f"User '{user}' not found in the workspace.")
    return state, {"user_id": state["user_map"][user]}


def message_login(state: State, user_id: str) -> tuple[State, Any]:
    """Log in by id."""
    if user_id not in state["user_map"].values():
        raise ToolError(f"User ID '{user_id}' not found.")
    state["current_user"] = user_id
    return state, {"login_status": True, "message": f"User '{user_id}' logged in."}


def message_get_login_status(state: State) -> tuple[State, Any]:
    """Login status."""
    return state, {"login_status": bool(state["current_user"])}


def send_message(state: State, receiver_id: str, message: str) -> tuple[State, Any]:
    """Send a message."""
    _logged_in(state)
    if receiver_id not in state["user_map"].values():
        raise ToolError(f"Receiver ID '{receiver_id}' not found.")
    state["inbox"].append({receiver_id: message})
    state["message_count"] += 1
    message_id = _FIRST_ID + state["message_count"]
    return state, {"sent_status": True, "message_id": message_id, "message": f"Message sent to '{receiver_id}'."}


def delete_message(state: State, receiver_id: str) -> tuple[State, Any]:
    """Delete the latest message to a receiver."""
    _logged_in(state)
    for position in reversed(range(len(state["inbox"]))):
        if receiver_id in state["inbox"][position]:
            del state["inbox"][position]
            return state, {"deleted_status": True, "receiver_id": receiver_id, "message": "Latest message deleted."}
    raise ToolError(f"Receiver ID {receiver_id} not found.")


def view_messages_sent(state: State) -> tuple[State, Any]:
    """List sent messages by receiver."""
    _logged_in(state)
    sent: dict[str, list[str]] = {}
    for receiver, text in _messages(state):
        sent.setdefault(receiver, []).append(text)
    return state, {"messages": sent}


def add_contact(state: State, user_name: str) -> tuple[State, Any]:
    """Add a user with the next id."""
    if user_name in state["user_map"]:
        raise ToolError(f"User name '{user_name}' already exists.")
    user_id = f"USR{state['user_count'] + 1:03}"
    if user_id in state["user_map"].values():
        raise ToolError(f"User ID '{user_id}' already exists.")
    state["user_count"] += 1
    state["user_map"][user_name] = user_id
    return state, {"added_status": True, "user_id": user_id, "message": f"Contact '{user_name}' added."}


def search_messages(state: State, keyword: str) -> tuple[State, Any]:
    """Messages that contain a word, case-insensitive."""
    _logged_in(state)
    results = [{"receiver_id": r, "message": text} for r, text in _messages(state) if keyword.lower() in text.lower()]
    return state, {"results": results}


def get_message_stats(state: State) -> tuple[State, Any]:
    """Number of messages and of receivers."""
    _logged_in(state)
    messages = _messages(state)
    contacts = {receiver for receiver, _ in messages}
    return state, {"stats": {"received_count": len(messages), "total_contacts": len(contacts)}}


MESSAGING = World(
    state_key="MessageAPI",
    init_state=_init_state,
    verify_results=True,
    functions={
        f.__name__: f
        for f in (
            list_users, get_user_id, message_login, message_get_login_status, send_message, delete_message,
            view_messages_sent, add_contact, search_messages, get_message_stats,
        )
    },
)  # fmt: skip
