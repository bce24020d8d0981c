"""Logged requests with their responses, in the ways in which proxies and clouds write them.

{"request": R, "response": A}, also with a `body` in each
{"request_body": R, "response_body": A}                                 Helicone
{**R, "response": A}                                                    LiteLLM
{"full_request": R, "full_response": A}                                 Vertex AI
{"input": {"inputBodyJson": R}, "output": {"outputBodyJson": A}}        Bedrock
{"modelInput": R, "modelOutput": A}                                     Bedrock, batches
{"params": R, "result": {"message": A}}                                 Anthropic, batches
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo.config.chats import ChatSettings
from grpo.data_errors import try_call
from grpo.scenarios.logged_chat import LoggedMessage
from grpo.scenarios.readers.files.places import parsed, value_at, without
from grpo.scenarios.readers.messages.api_dialects import rewrite_reply
from grpo.scenarios.readers.messages.chat_dialects import openai_messages
from grpo.scenarios.readers.messages.openai_fields import REQUEST
from grpo.scenarios.readers.messages.openai_format import parse_messages, reply_of

LISTS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat", "chatbot")
"""Keys of the list of messages."""
_EXCHANGES = (
    ("request", "response"),
    ("request_body", "response_body"),
    ("full_request", "full_response"),
    ("input.inputBodyJson", "output.outputBodyJson"),
    ("modelInput", "modelOutput"),
    ("params", "result.message"),
)
"""Places of a request and of its response, each an object or JSON in a text. If the record has a list of messages, only
an object at the first two is a request, because a text or another object may describe the list."""
_BEFORE_MESSAGES = ("request", "request_body")


def is_exchange(data: Mapping[str, Any]) -> bool:
    """True for a logged request, with its response or without it."""
    if isinstance(data.get("chat_history"), list) and isinstance(data.get("message"), str):
        return True
    return any(isinstance(parsed(value_at(data, asked)), dict) for asked, _ in _EXCHANGES)


def with_request(data: dict[str, Any], settings: ChatSettings) -> tuple[dict[str, Any], list[str]]:
    """The record with its exchange under `request` and `response`, if it has one, and what was left out of it.

    {"request_body": R, "response_body": A}, {"request": {"body": R}, "response": {"body": A}} and
    {**R, "response": A} → {"request": R, "response": A}
    """
    has_messages = bool({*LISTS, "contents"} & {*data})
    for asked, answered in _EXCHANGES:
        request = parsed(value_at(data, asked)) if not has_messages else data.get(asked)
        if isinstance(request, dict) and (not has_messages or asked in _BEFORE_MESSAGES):
            kept = without(without(data, asked), answered)
            exchange = {"request": _under_body(request), "response": _under_body(parsed(value_at(data, answered)))}
            return {**kept, **{key: value for key, value in exchange.items() if value is not None}}, []
    response = data.get("response")
    key = next((key for key in (*LISTS, "contents") if key in data), None)
    messages = None if key is None else parsed(data[key])
    if key is None or not isinstance(messages, list) or response in (None, "", {}, []):
        return data, []
    if key != "contents":
        data, key = {**without(data, key), "messages": messages}, "messages"
    kept = {name: value for name, value in data.items() if name != "response"}
    message = _reply_beside(response)
    if message is None:
        return kept, ["record.response: it is no reply in a known format"]
    if (last := _last_reply(data[key], settings)) is not None:
        if _repeats(message, last, settings):
            return kept, []
        return kept, ["record.response: it differs from the reply that the messages end with"]
    if message == {"role": "assistant", "content": response}:
        return {**kept, key: [*data[key], message]}, []
    request = {name: value for name, value in kept.items() if name in (*REQUEST, "contents", "system")}
    others = {name: value for name, value in data.items() if name not in request}
    return {**others, "request": request, "response": parsed(response)}, []


def _reply_beside(response: Any) -> Any:
    """The message of a response that stands next to messages. None if the response is neither a text nor a completion.

    A completion without a message gives an empty object, so that it is refused as every other one.
    """
    completion = rewrite_reply(parsed(response))
    if not isinstance(completion, dict) or "choices" not in completion:
        is_text = isinstance(response, str) and response.strip()
        return {"role": "assistant", "content": response} if is_text else None
    message = try_call(lambda: reply_of(completion, []))
    return {} if isinstance(message, Exception) else message


def _last_reply(messages: list[Any], settings: ChatSettings) -> LoggedMessage | None:
    """The last message, if it is the agent's. In a chat that cannot be read there is none, and the chat is refused."""
    read = try_call(lambda: parse_messages(openai_messages(messages, settings)))
    return read[-1] if isinstance(read, tuple) and read and read[-1].role == "assistant" else None


def _repeats(message: Any, last: LoggedMessage, settings: ChatSettings) -> bool:
    """True if a response equals the reply at the end of the messages. A text has no calls to compare."""
    reply = _last_reply([message], settings)
    return (
        reply is not None
        and reply.content.strip() == last.content.strip()
        and reply.tool_calls in ((), last.tool_calls)
    )


def _under_body(value: Any) -> Any:
    inner = value.get("body") if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else value
