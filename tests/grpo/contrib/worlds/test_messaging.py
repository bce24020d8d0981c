"""Workspace messages of BFCL."""

from __future__ import annotations

from tests.grpo.contrib.worlds.bfcl import run_calls


def test_messages_need_a_login_and_a_known_receiver():
    """The fifth person gets the fifth id; deleted messages are gone."""
    results, state = run_calls(
        "MessageAPI", {},
        ("send_message", {"receiver_id": "USR002", "message": "Hi"}), ("message_login", {"user_id": "USR001"}),
        ("add_contact", {"user_name": "Eve"}), ("send_message", {"receiver_id": "USR005", "message": "Hi Eve"}),
        ("send_message", {"receiver_id": "USR009", "message": "?"}), ("search_messages", {"keyword": "EVE"}),
        ("delete_message", {"receiver_id": "USR005"}), ("view_messages_sent", {}),
    )  # fmt: skip
    assert ["error" in result for result in results] == [True, False, False, False, True, False, False, False]
    assert results[2]["user_id"] == "USR005"
    assert results[5]["results"] == [{"receiver_id": "USR005", "message": "Hi Eve"}]
    assert (results[7]["messages"], state["inbox"]) == ({}, [])


def test_messages_are_found_as_the_tasks_write_them():
    """One text, several, or several by sender, of one receiver."""
    inbox = [{"USR001": "Hi"}, {"USR002": ["Ho", "Hu"]}, {"USR003": {"USR001": ["He"]}}, {"USR004": {}}]
    results, _ = run_calls("MessageAPI", {"current_user": "USR001", "inbox": inbox}, ("view_messages_sent", {}))
    assert results == [{"messages": {"USR001": ["Hi"], "USR002": ["Ho", "Hu"], "USR003": ["He"]}}]
