"""Fields of OpenAI's types. Each is read, left out and counted, or the record is quarantined.

    read       its meaning is kept
    left out   it only tells how a reply was made, or repeats something. `IngestCounts` counts the records that have it
    refused    without it the conversation would be another one, so the record is quarantined with the reason

The tables have every field of the types of the package `openai`, and a test compares them. If a field is in none of the
tables, it is left out and counted as unknown. Null, an empty text, list or object, and false count as an absent field,
but an unknown field that is false is counted, because its meaning may be "do not learn this".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo.data_errors import excerpt

_SHOWN = 40  # characters of the name of a field
_UNKNOWN = "unknown"
READ = ""
"""The field is read."""

SAMPLING = "how the reply was sampled"
ACCOUNT = "identifiers and accounting of the API"
_SOUND = "!sound is not read"

MESSAGE: dict[str, str] = {
    **dict.fromkeys(("role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal"), READ),
    "tool_name": READ,  # of Ollama
    **dict.fromkeys(("weight", "reasoning_content", "reasoning", "thinking", "tool_plan"), READ),
    **dict.fromkeys(("train_detail", "training_detail"), "!spans of a text that are learned are not read"),
    "audio": _SOUND,
    **dict.fromkeys(("annotations", "citations"), "links to the sources of a reply"),
    "children": "!answers below a message are not read. Export the chat without branches",
    **dict.fromkeys(("images", "image", "videos", "video", "audios", "files"), "!content other than text is not read"),
    "attachments": "!content other than text is not read",
}
"""Fields of a message. If a reason begins with !, the record is refused."""
CALL: dict[str, str] = {
    **dict.fromkeys(("id", "type", "function"), READ),
    "custom": "!a call of a custom tool has a text, not arguments",
    "index": "the place in its list, which repeats the order",
}
"""Fields of a tool call."""
CALL_FUNCTION: dict[str, str] = {
    **dict.fromkeys(("name", "arguments"), READ),
    "parsed_arguments": "the arguments once more, as a client parsed them",
}
"""Fields of the function of a tool call, and of `function_call`."""
TOOL: dict[str, str] = {
    **dict.fromkeys(("type", "function", "name", "description", "parameters"), READ),
    "custom": "!a custom tool takes a text, not arguments",
    "strict": SAMPLING,
}
"""Fields of a tool, or of a bare function."""
TOOL_FUNCTION: dict[str, str] = {
    **dict.fromkeys(("name", "description", "parameters"), READ),
    "strict": SAMPLING,
}
"""Fields of the function of a tool, and of `functions`."""
TEXT_PART: dict[str, str] = {
    **dict.fromkeys(("type", "text", "refusal"), READ),
    "prompt_cache_breakpoint": ACCOUNT,
    "cache_control": ACCOUNT,
    "annotations": "links to the sources of a reply",
    "logprobs": SAMPLING,
}
"""Fields of a part of a text or refusal. Other parts, e.g. pictures, are refused."""
REQUEST: dict[str, str] = {
    **dict.fromkeys(("messages", "tools", "functions", "metadata"), READ),
    **dict.fromkeys(
        (
            "model", "frequency_penalty", "function_call", "logit_bias", "logprobs", "max_completion_tokens",
            "max_tokens", "modalities", "n", "parallel_tool_calls", "prediction", "presence_penalty",
            "reasoning_effort", "response_format", "seed", "stop", "stream", "stream_options", "temperature",
            "tool_choice", "top_logprobs", "top_p", "verbosity",
        ),
        SAMPLING,
    ),
    **dict.fromkeys(
        (
            "moderation", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
            "service_tier", "store", "user",
        ),
        ACCOUNT,
    ),
    "audio": "the voice of replies in sound",
    "previous_response_id": "!the messages before it are in another response, and responses are not joined",
    "web_search_options": "!a search that the API made itself is not read",
}  # fmt: skip
"""Fields of a request of chat completions."""
RESPONSE: dict[str, str] = {
    "choices": READ,
    **dict.fromkeys(
        ("id", "created", "model", "object", "metadata", "service_tier", "system_fingerprint", "usage"), ACCOUNT
    ),
    "moderation": ACCOUNT,
}
"""Fields of a chat completion."""
CHOICE: dict[str, str] = {
    **dict.fromkeys(("message", "finish_reason"), READ),
    "index": "the place in its list, which repeats the order",
    "logprobs": SAMPLING,
}
"""Fields of a choice."""
_PAIR = "!a preference pair is not a chat. Read it as pairs of a reward model, layout: messages"
RECORD: dict[str, str] = {
    **dict.fromkeys(("id", "request", "response", "body", "custom_id", "system"), READ),
    **dict.fromkeys(("method", "url", "error"), "the address and state of a batch"),
    **dict.fromkeys(("preferred_output", "non_preferred_output", "chosen", "rejected"), _PAIR),
    **dict.fromkeys(("rejected_response", "rejected_message", "rejected_messages"), _PAIR),
    **dict.fromkeys(("images", "image", "videos", "audios", "attachments"), "!content other than text is not read"),
    **REQUEST,
}
"""Fields of a record of a file: of a fine-tuning file, of a log, or of the input of a batch."""


def is_mark(name: Any, value: Any) -> bool:
    """Return True if a field of a message is a switch for whether the turn is learned.

    axolotl writes `train` and `training`, ms-swift writes `loss`. A number under `loss` or `training`, such as the loss
    that a trainer logged, and a text are not switches.
    """
    if name not in ("train", "training", "loss"):
        return False
    return isinstance(value, bool) or (name == "train" and type(value) is int and value in (0, 1))


_OF_TOOLS = frozenset(
    f"{what}{part}{end}"
    for what in ("tool", "function")
    for part in ("call", "use", "invocation", "request", "result", "response", "output")
    for end in ("", "s")
) | {"usedtools", "toolsused", "calledtools", "intermediatesteps"}
"""Keys of calls and results in the words of many programs, in lower case and without anything between the words."""


_REMEDIES = {
    "message": "If they have OpenAI's form, name this key in the source's names, under tool_calls",
    "record": "Write them into the messages that they belong to",
}


def calls_at(name: object, value: object) -> str | None:
    """Place of calls or results of tools, by its key or by a key of the object, such as `metadata.tool_calls`.

    Or by the type of an item: HuggingChat has {"type": "tool", …} among the `updates` of a message.
    """
    if isinstance(value, list) and any(isinstance(item, Mapping) and _names_tools(item.get("type")) for item in value):
        return str(name)
    inside = value.items() if isinstance(value, Mapping) else ()
    places = ((str(name), value), *((f"{name}.{key}", item) for key, item in inside))
    return next((place for place, item in places if _are_calls(place.rpartition(".")[2], item)), None)


def _names_tools(kind: object) -> bool:
    return kind == "tool" or (isinstance(kind, str) and "".join(filter(str.isalnum, kind)).lower() in _OF_TOOLS)


def _are_calls(name: str, value: object) -> bool:
    return isinstance(value, (list, dict)) and bool(value) and name != "tool" and _names_tools(name)


def left_out(fields: Mapping[str, str], value: Mapping[Any, Any], noun: str, place: str) -> tuple[str, ...]:
    """Fields that are not read, each with its reason: `message.audio: …`.

    Raises `ValueError` if the conversation would be another one without the field.
    """
    names = []
    for name, item in value.items():
        reason = fields.get(name, _UNKNOWN)
        if reason == READ or item in (None, "") or (isinstance(item, (list, dict)) and not item):
            continue
        if item is False and reason != _UNKNOWN:
            continue
        shown = f"{noun}.{excerpt(name, _SHOWN)}"
        if reason == _UNKNOWN and noun in _REMEDIES and (calls := calls_at(name, item)) is not None:
            where = f"; {place}" if place else ""
            calls = f"{noun}.{excerpt(calls, _SHOWN)}"
            raise ValueError(f"{calls} cannot be read: it has calls or results of tools{where}. {_REMEDIES[noun]}")
        if reason.startswith("!"):
            raise ValueError(f"{shown} cannot be read: {reason[1:]}{f'; {place}' if place else ''}")
        names.append(f"{shown}: {reason}")
    return tuple(names)
