from __future__ import annotations

import pytest

from grpo.errors import DataError
from grpo.messages import Message, parse_assistant


def test_plain_words_are_content():
    """Text without a call is what the customer reads."""
    assert parse_assistant(" Hello. ") == Message(role="assistant", content="Hello.")


def test_a_tool_call_is_read_from_the_models_own_text():
    """The JSON between the markers becomes a call with its arguments."""
    message = parse_assistant('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>')
    assert message.content == ""
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("f", {"x": 1})]


@pytest.mark.parametrize(
    "body", ["{broken", '{"name": "f"}', '{"name": 1, "arguments": {}}', '{"name": "f", "arguments": []}', "[]"]
)
def test_an_unreadable_call_is_malformed(body: str):
    """The message keeps the reason for the model."""
    message = parse_assistant(f"<tool_call>{body}</tool_call>")
    assert message.tool_calls == ()
    assert message.malformed is not None
    assert body in message.malformed


def test_an_unknown_role_is_refused():
    """A role outside the four is an error that names them."""
    with pytest.raises(DataError, match=r"'robot'.*system, user, assistant, tool"):
        Message(role="robot", content="x")  # type: ignore[arg-type]
