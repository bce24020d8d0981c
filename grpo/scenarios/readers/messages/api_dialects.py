"""Messages, tools and replies of the APIs of other providers, rewritten into OpenAI's.

    Anthropic   {"type": "tool_use", "id", "name", "input"}, {"type": "tool_result", "tool_use_id", "content"}
    Bedrock     {"toolUse": {"toolUseId", "name", "input"}}, {"toolResult": {"toolUseId", "content"}}
    Gemini      {"functionCall": {"name", "args"}}, {"functionResponse": {"name", "response"}}, in `parts`
    AI SDK      {"type": "tool-call", "toolCallId", "toolName", "input"}, {"type": "tool-result", …, "output"}
    OTel GenAI  {"type": "tool_call", "id", "name", "arguments"}, {"type": "tool_call_response", "id", "response"}
    LM Studio   {"type": "toolCallRequest", "callId", "name", "parameters"}, {"type": "toolCallResult", "callId", …}

These APIs have calls, results and reasoning as parts of a message's content. A message with such parts becomes OpenAI's
messages: the results of a user's message come first, as messages of the role tool. Other parts, e.g. pictures, stay as
they are, so that the parser refuses them by their name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo.data_errors import excerpt
from grpo.scenarios.readers.messages.ai_sdk import with_page_parts
from grpo.scenarios.readers.messages.message_items import rewrite_items

_TEXTS = ("text", "input_text", "output_text", "refusal")
_CALLS = ("tool_use", "tool-call", "tool_call", "toolUse", "toolCallRequest", "functionCall", "function_call")
_RESULTS = (
    "tool_result",
    "tool_call_result",
    "tool-result",
    "tool_call_response",
    "toolResult",
    "toolCallResult",
    "functionResponse",
    "function_response",
)
_REASONING = ("thinking", "redacted_thinking", "reasoning", "reasoningContent")
_IDS = ("id", "tool_use_id", "toolCallId", "toolUseId", "callId")
_NAMES = ("name", "toolName", "tool_name")
_ARGUMENTS = ("input", "args", "arguments", "parameters")
_OUTPUTS = ("output", "content", "response", "result")
_SHOWN_ONLY = ("step-start",)
"""Parts of AI SDK's messages that only tell a page where a step begins."""
_SOURCES = ("source-url", "source-document", "source")
_DATA = "data-"
"""Prefix of the parts of AI SDK's messages that an application shows on its page, and that a model does not read."""
_TYPES = ("type", "block_type", "content_type")
"""Keys of the type of a part: of LlamaIndex and Semantic Kernel too."""
_PARTS = ("parts", "blocks", "items")
"""Lists of parts that stand in for the content."""
_MARKUP = (
    "bold", "italic", "underline", "strikethrough", "spoiler", "code", "pre", "link", "text_link", "mention", "hashtag",
    "cashtag", "bot_command", "email", "phone", "plain", "blockquote",
)  # fmt: skip
"""Types of parts that are a text with a format, as Telegram exports them."""
_SYSTEM_KEYS = ("preprompt", "systeminstruction", "systemprompt", "systemmessage", "systemrole")
_CUT_OFF = ("max_tokens", "MAX_TOKENS", "incomplete")


def rewrite_record(data: Mapping[str, Any]) -> dict[str, Any]:
    """A record or request with OpenAI's keys: `contents` of Gemini, its system text, and the tools of Bedrock."""
    record = dict(data)
    if isinstance(record.get("contents"), list) and "messages" not in record:
        record["messages"] = record.pop("contents")
    if isinstance(record.get("chat_history"), list) and isinstance(record.get("message"), str):  # Cohere
        asked = {"role": "user", "content": record.pop("message")}
        record["messages"] = [*(_cohere(message) for message in record.pop("chat_history")), asked]
        record |= {"system": record.pop("preamble")} if "preamble" in record and "system" not in record else {}
    if "system" not in record and not any(map(_begins_with_system, record.values())):
        key = next((key for key in record if is_system_key(key) and record[key]), None)
        record |= {"system": record.pop(key)} if key is not None else {}
    config = record.get("toolConfig")
    if isinstance(config, Mapping) and "tools" in config and "tools" not in record:
        record["tools"] = record.pop("toolConfig")["tools"]
    if "system" in record:
        record["system"] = _system_text(record["system"])
    return record


def is_system_key(key: str) -> bool:
    """True for the name of a system prompt next to the messages, such as `systemInstruction` or `system_prompt`."""
    return key.replace("_", "").lower() in _SYSTEM_KEYS


def _begins_with_system(messages: Any) -> bool:
    first = messages[0] if isinstance(messages, list) and messages else None
    if not isinstance(first, Mapping) or (first.get("role") or first.get("from")) not in ("system", "developer"):
        return False
    return first.get("content", first.get("value")) not in (None, "", [])


def _cohere(message: Any) -> Any:
    is_text = isinstance(message, Mapping) and "message" in message and "content" not in message
    return {**_without(message, "message"), "content": message["message"]} if is_text else message


def _system_text(value: Any) -> Any:
    """Text of a system prompt that is given as parts. Everything else stays unchanged, so that it is refused."""
    if isinstance(value, Mapping):
        value = value.get("parts", value.get("content", value))
    if not isinstance(value, list):
        return value
    texts: list[Any] = [part.get("text") if isinstance(part, Mapping) else part for part in value]
    return "\n\n".join(texts) if all(isinstance(text, str) for text in texts) else value


def rewrite_reply(response: Any) -> Any:
    """A chat completion, from a reply of Anthropic, Gemini or Bedrock. Everything else stays unchanged."""
    if not isinstance(response, Mapping) or "choices" in response:
        return response
    candidates, output = response.get("candidates"), response.get("output")
    if isinstance(candidates, list) and candidates and isinstance(candidates[0], Mapping):
        message, reason = candidates[0].get("content"), candidates[0].get("finishReason")
    elif isinstance(output, Mapping) and isinstance(output.get("message"), Mapping):
        message, reason = output["message"], response.get("stopReason")
    elif response.get("role") == "assistant" and isinstance(response.get("content"), list):
        message, reason = {"role": "assistant", "content": response["content"]}, response.get("stop_reason")
    elif isinstance(response.get("text"), str) and "generation_id" in response:
        message, reason = {"content": response["text"]}, response.get("finish_reason")
    elif response.get("object") == "response" and isinstance(output, list):
        messages = rewrite_items([*output])
        message, reason = (messages[0] if len(messages) == 1 else None), response.get("status")
    else:
        return response
    if isinstance(message, Mapping) and "role" not in message:
        message = {**message, "role": "assistant"}
    return {"choices": [{"message": message, "finish_reason": "length" if reason in _CUT_OFF else "stop"}]}


def rewrite_tools(tools: Sequence[Any]) -> list[Any]:
    """Tools with OpenAI's keys: `input_schema` of Anthropic, `toolSpec` of Bedrock, declarations of Gemini."""
    rewritten: list[Any] = []
    for tool in tools:
        if not isinstance(tool, Mapping):
            rewritten.append(tool)
        elif isinstance(declared := _first(tool, "functionDeclarations", "function_declarations"), list):
            rewritten += [_declared(function) for function in declared]
        else:
            rewritten.append(_tool(tool))
    return rewritten


def _tool(tool: Mapping[str, Any]) -> Any:
    spec = tool.get("toolSpec")
    inner = dict(spec) if isinstance(spec, Mapping) else dict(tool)
    if "function" in inner or "parameters" in inner:
        return tool
    schema = inner.pop("input_schema", None) or inner.pop("inputSchema", None)
    if schema is None:
        return tool
    if isinstance(schema, Mapping) and schema.keys() == {"json"}:
        schema = schema["json"]
    if inner.get("type") == "custom":
        del inner["type"]
    return {**inner, "parameters": schema}


def _declared(function: Any) -> Any:
    """A function of Gemini, with the types of JSON schema in lower case."""
    if not isinstance(function, Mapping):
        return function
    schema = _first(function, "parameters", "parametersJsonSchema", "parameters_json_schema")
    kept = {key: value for key, value in function.items() if not key.startswith("parameters")}
    return {**kept, "parameters": _lower_types(schema)} if schema is not None else kept


def _lower_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_lower_types(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else _lower_types(value)
        for key, value in schema.items()
    }


def split_parts(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """OpenAI's messages of a message. If its content has no part of another API, it is the message itself.

    Raises `ValueError` if a result has content other than text and JSON.
    """
    message = with_page_parts(message)
    place = next((key for key in _PARTS if isinstance(message.get(key), list)), None)
    parts = message.get("content") if message.get("content") is not None or place is None else message[place]
    if not isinstance(parts, list) or all(_is_plain(part) for part in parts):
        is_content = place is None or parts is message.get("content")
        yield dict(message) if is_content else {**_without(message, str(place)), "content": parts}
        return
    own = _without(message, "content", *((place,) if place is not None else ()))
    parts = [_typed(part) for part in parts]
    own |= {"annotations": sources} if (sources := [part for part in parts if _kind(part) in _SOURCES]) else {}
    own |= {str(_kind(part)): part for part in parts if _is_data(part)}
    parts = [part for part in parts if _kind(part) not in _SOURCES and not _is_data(part)]
    if message.get("role") == "assistant":
        yield from _agent_messages(own, parts)
        return
    results = [result for part in parts if (result := _result(part)) is not None]
    others = [_text_part(part) for part in parts if _result(part) is None and _kind(part) not in _SHOWN_ONLY]
    yield from results
    if others or not results:
        yield {**own, "content": others}


def _agent_messages(own: dict[str, Any], parts: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Messages of an agent's parts. After the results of a step, its next text begins another message.

    If `tool_calls` is not a list, the message keeps it, so that the parser refuses it.
    """
    declared = own.pop("tool_calls", None) or []
    if not isinstance(declared, list):
        yield {**own, "tool_calls": declared}
        return
    ids = [call.get("id") for call in declared if isinstance(call, Mapping)]
    repeated = {excerpt(call_id) for call_id in ids if call_id is not None}
    content: list[Any] = []
    reasoning: list[str] = []
    calls: list[Any] = [*declared]
    results: list[dict[str, Any]] = []
    for part in parts:
        kind, call = _kind(part), _call(part)
        if results and (kind in (*_SHOWN_ONLY, *_REASONING) or _is_plain(_text_part(part))):
            yield _agent_message(own, content, reasoning, calls)
            yield from results
            content, reasoning, calls, results = [], [], [], []
        if call is not None:
            calls += [] if excerpt(call["id"]) in repeated else [call]
        if (result := _result(part)) is not None:
            results.append(result)
        elif kind in _REASONING or (isinstance(part, Mapping) and part.get("thought") is True):
            reasoning.append(_reasoning(part))
        elif call is None and kind not in _SHOWN_ONLY:
            content.append(_text_part(part))
    yield _agent_message(own, content, reasoning, calls)
    yield from results


def _agent_message(
    own: Mapping[str, Any], content: list[Any], reasoning: list[str], calls: list[Any]
) -> dict[str, Any]:
    thoughts = "\n\n".join(text for text in reasoning if text)
    return {
        **own,
        "content": content or None,
        **({"tool_calls": calls} if calls else {}),
        **({"reasoning": thoughts} if thoughts else {}),
    }


def _is_plain(part: Any) -> bool:
    """True for a text, or a part of OpenAI's own types."""
    if not isinstance(part, Mapping):
        return True
    return part.get("type") in _TEXTS and any(isinstance(part.get(key), str) for key in ("text", "refusal"))


def _typed(part: Any) -> Any:
    """A part with its type under `type`."""
    name = next((name for name in _TYPES if isinstance(part, Mapping) and isinstance(part.get(name), str)), "type")
    return part if name == "type" else {**_without(part, name), "type": part[name]}


def _is_data(part: Any) -> bool:
    return (_kind(part) or "").startswith(_DATA)


def _kind(part: Any) -> str | None:
    """Name of a part: its `type`, or else its only key with a meaning."""
    if not isinstance(part, Mapping):
        return None
    kind = part.get("type")
    if isinstance(kind, str):
        return kind
    return next((key for key in part if key in (*_CALLS, *_RESULTS, *_REASONING)), None)


def _body(part: Mapping[str, Any], kind: str | None) -> Mapping[str, Any]:
    """Fields of a part, which Bedrock, Gemini and LM Studio have one level deeper."""
    inner = part.get(kind) if kind is not None else None
    return inner if isinstance(inner, Mapping) else part


def _is_page_tool(part: Any) -> bool:
    """True for a call with its result, as AI SDK shows it on a page (`tool-NAME`).

    Its `state` tells it from the SDK's own types, such as `tool-error` and `tool-approval-request`, which have none.
    """
    kind = _kind(part)
    if kind is None or kind in (*_CALLS, *_RESULTS):
        return False
    return kind == "dynamic-tool" or (kind.startswith("tool-") and isinstance(part.get("state"), str))


def _call(part: Any) -> dict[str, Any] | None:
    kind = _kind(part)
    if kind not in _CALLS and not _is_page_tool(part):
        return None
    body = _body(part, kind)
    name = _first(body, *_NAMES) or (kind or "").removeprefix("tool-")
    arguments = _first(body, *_ARGUMENTS)
    function = {"name": name, "arguments": {} if arguments is None else arguments}
    call_id = _first(body, *_IDS)
    return {"id": f"function {name}" if call_id is None else call_id, "function": function}


def _result(part: Any) -> dict[str, Any] | None:
    kind = _kind(part)
    if not isinstance(part, Mapping) or (kind not in _RESULTS and not _is_page_tool(part)):
        return None
    body = _body(part, kind)
    if isinstance(origin := body.get("origin"), Mapping):  # Haystack's result repeats its call
        body = {**body, "id": origin.get("id"), "name": origin.get("tool_name"), "is_error": body.get("error")}
    if _is_page_tool(part) and not body.keys() & {"output", "errorText"}:
        return None
    value = _first(body, "errorText", *_OUTPUTS)
    call_id = _first(body, *_IDS)
    answered = f"function {_first(body, *_NAMES)}" if call_id is None else call_id
    failed = {"is_error": True} if body.get("is_error") or body.get("status") == "error" else {}
    return {"role": "tool", "tool_call_id": answered, "content": _result_text(value), **failed}


def _result_text(value: Any) -> str:
    """Text of a result: a text, the texts of its parts, or JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, Mapping) and value.keys() == {"type", "value"}:
        return _result_text(value["value"])
    if isinstance(value, list) and value and all(isinstance(part, Mapping) for part in value):
        if all(part.keys() == {"json"} for part in value):
            return "".join(_json(part["json"]) for part in value)
        if all(isinstance(part.get("text"), str) for part in value):
            return "".join(part["text"] for part in value)
        if kinds := [kind for part in value if (kind := _kind(part)) is not None and kind not in _TEXTS]:
            raise ValueError(f"content is not text: part {kinds[0]} in the result of a tool")
        if pictures := [key for part in value for key in part if key in ("image", "document", "video")]:
            raise ValueError(f"content is not text: part {pictures[0]} in the result of a tool")
    return _json(value)


def _reasoning(part: Mapping[str, Any]) -> str:
    """Text of a part with reasoning. Encrypted reasoning has none."""
    body = part.get("reasoningContent", part)
    body = body.get("reasoningText", body) if isinstance(body, Mapping) else {}
    value = _first(body, "thinking", "text", "content", "reasoning") if isinstance(body, Mapping) else body
    if isinstance(value, list):
        return "".join(str(item.get("text", "")) for item in value if isinstance(item, Mapping))
    return value if isinstance(value, str) else ""


def _text_part(part: Any) -> Any:
    """A text in OpenAI's form: Bedrock and Gemini write no type, and OTel has the text under `content`."""
    if not isinstance(part, Mapping) or _is_plain(part):
        return part
    if "type" not in part and isinstance(part.get("text"), str):
        return {**part, "type": "text"}
    if part.get("type") in _MARKUP and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if part.get("type") == "text" and isinstance(inner := part.get("text"), Mapping) and "value" in inner:
        return {**part, "text": inner["value"], "annotations": inner.get("annotations")}
    if part.get("type") == "document" and isinstance(inner := part.get("document"), Mapping) and "data" in inner:
        return {"type": "text", "text": _result_text(inner["data"])}
    if part.get("type") == "text" and isinstance(part.get("content"), str):
        return {**_without(part, "content"), "text": part["content"]}
    return part if "type" in part else {**part, "type": next(iter(part), None)}


def _first(value: Mapping[str, Any], *names: str) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), None)


def _without(value: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in names}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
