"""Joining the calls of a model to chats."""

from __future__ import annotations

import pytest

from grpo.scenarios.logged_chat import LoggedMessage
from grpo.scenarios.readers.traces.logged_runs import join


def messages(text: str) -> list[LoggedMessage]:
    """`U1 A1` is a turn of the user and a reply."""
    return [LoggedMessage(role="user" if name[0] == "U" else "assistant", content=name) for name in text.split()]


@pytest.mark.parametrize(
    ("chat", "call", "joined"),
    [
        ("", "U1 A1", "U1 A1"),
        ("U1 A1", "U1 A1 U2 A2", "U1 A1 U2 A2"),
        ("U1 A1", "U2 A2", "U1 A1 U2 A2"),
        ("U1 A1 U2 A2", "U2 A2 U3 A3", "U1 A1 U2 A2 U3 A3"),
        ("U1 A1", "U1 B1", "U1 B1"),
        ("U1 A1 U2 A2", "U1 A1 U2 B2", "U1 A1 U2 B2"),
        ("U1 A1 U2 A2", "U1 A1", "U1 A1 U2 A2"),
        ("U1 A1 U2 A2", "U1 B2", "U1 A1 U2 A2 U1 B2"),
    ],
)
def test_calls_are_joined_to_a_chat(chat: str, call: str, joined: str) -> None:
    """A repeated history, single turns, a window, a second try, a repeated call, and a turn that begins alike."""
    assert join(messages(chat), messages(call)) == messages(joined)


def test_a_window_of_alike_messages_is_joined_in_linear_time() -> None:
    """50,000 equal messages; comparing every overlap would take 10^9 steps."""
    chat = [*messages("U0"), *messages("A1") * 50_000]
    assert len(join(chat, [*messages("A1") * 50_000, *messages("U2")])) == 50_002
