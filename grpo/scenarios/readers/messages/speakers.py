"""Common names of the speakers in logs and exports."""

from __future__ import annotations

from typing import Any

from grpo.messages import Role

_USERS = (
    "user", "human", "customer", "client", "consumer", "visitor", "requester", "contact", "lead", "caller", "enduser",
    "prompter", "incoming", "inbound", "usermessage",
)  # fmt: skip
_AGENTS = (
    "assistant", "agent", "bot", "ai", "gpt", "chatgpt", "chatbot", "model", "gemini", "bard", "bing", "admin",
    "teammate", "operator", "agentbot", "outgoing", "outbound", "apimessage", "assistantmessage", "business",
)  # fmt: skip
SPEAKERS: dict[str, Role] = {
    **dict.fromkeys(_USERS, "user"),
    **dict.fromkeys(_AGENTS, "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
}
"""Meaning of each name, in lower case and without spaces, hyphens and underscores."""

CALLS = ("functioncall", "toolcall")
"""Names of the agent as the caller of a tool."""
TOOLS = ("tool", "function", "observation", "functionresponse", "toolresponse", "ipython")
"""Names of a tool as the author of its result."""


def speaker_name(value: Any) -> str:
    """The form of a name in which it is looked up: end_user and End-User → enduser, true → "true"."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.strip().lower().replace("_", "").replace("-", "").replace(" ", "")
