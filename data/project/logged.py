"""Conversion of logged chats into scenarios, which `retrain.yaml` trains on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "conversations"


def customers() -> Iterator[dict[str, Any]]:
    """One customer for each chat in `conversations/*.jsonl`, in OpenAI's format, one per line."""
    for path in sorted(FOLDER.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            yield customer(json.loads(line), name=f"{path.stem}-{number}")


def customer(chat: dict[str, Any], *, name: str) -> dict[str, Any]:
    """Scenario of a chat: the customer's messages, the orders that were looked up, and the replacements to make."""
    messages = chat["messages"]
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    made = [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in calls]
    results = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
    pairs = list(zip(made, results, strict=True))
    return {
        "id": name,
        "user_responses": [message["content"] for message in messages if message["role"] == "user"],
        "world": {"orders": {call["arguments"]["order"]: order for call, order in pairs if call["name"] == "look_up"}},
        "expected": {"calls": [call for call in made if call["name"] == "replace"]},
        "metadata": chat["metadata"],
    }
