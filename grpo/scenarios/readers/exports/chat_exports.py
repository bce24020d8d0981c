"""Readers of exports of chat programs, one pair of functions for each: is a record the program's, and its messages.

    Open WebUI               {"chat": {"params": {"system": …}, "history": {"messages": {"a": {…}}, "currentId": "a"}}}
    LibreChat                {"messages": [{"messageId", "parentMessageId", "isCreatedByUser", "text"}, …]}
    llama.cpp                {"conv": {"currNode": "b"}, "messages": [{"id", "parent", "role", "content"}, …]}
    text-generation-webui    {"internal": [["Where is order 7?", "It is lost."]], "visible": [[…]]}
    Chatbox                  {"messages": [{"role", "contentParts": [{"type": "text", "text": …}]}, …]}
    Google AI Studio         {"systemInstruction": {…}, "chunkedPrompt": {"chunks": [{"role", "text"}, …]}}
    NextChat                 {"mask": {"context": [{"role": "system", "content": …}]}, "messages": […]}
    Grok                     {"conversation": {…}, "responses": [{"response": {"sender": "human", "message": …}}, …]}
    Character.AI             {"msgs": [{"src": {"is_human": true}, "text": …}, …]}, as the extension CAI Tools saves it

Of several replies to one message, the branch that the program shows is read. A reply that was not finished, or that the
user rated as bad, is not a reference.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo.data_errors import excerpt, try_call
from grpo.scenarios.readers.exports.message_links import OTHER_BRANCHES, shown_branch
from grpo.scenarios.readers.files.places import parsed, value_at
from grpo.strict_json import decode

_DETAILS = re.compile(r'<details type="(\w{1,40})"([^<>]*)>')
"""Beginning of a block that Open WebUI writes into a text for its page."""
_END_OF_DETAILS = "</details>"
_ATTRIBUTE = re.compile(r'\b(\w{1,40})="([^"]*)"')
_SUMMARY = re.compile(r"<summary>[^<]*</summary>")
_GREETING = "<|BEGIN-VISIBLE-CHAT|>"
"""Text that text-generation-webui stores as the user's message before the agent's greeting."""
_CUT_OFF = ("length", "MAX_TOKENS")
_SHOWN = 80  # characters of a value in a reason

Read = tuple[dict[str, Any], list[str]]


def _settings(program: str) -> str:
    return f"record: settings and statistics of {program}"


def _have(messages: Any, *keys: str) -> bool:
    """True for a list of messages that all have these keys."""
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(message, Mapping) and {*keys} <= {*message} for message in messages)
    )


def _kept(data: Mapping[str, Any]) -> dict[str, Any]:
    """Id and metadata of a record, which name its scenario."""
    return {key: data[key] for key in ("id", "metadata") if key in data}


def is_open_webui(data: Mapping[str, Any]) -> bool:
    """True for a chat of Open WebUI, in its export or on its own."""
    return isinstance(value_at(_chat(data), "history.messages"), Mapping)


def _chat(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return data["chat"] if isinstance(data.get("chat"), Mapping) else data


def read_open_webui(data: Mapping[str, Any]) -> Read:
    """The branch that ends at `currentId`, with reasoning and calls that are blocks of the text."""
    chat = _chat(data)
    nodes = [{"id": name, **node} for name, node in chat["history"]["messages"].items() if isinstance(node, Mapping)]
    branch, has_others = shown_branch(nodes, chat["history"].get("currentId"))
    messages = [message for number, node in enumerate(branch) for message in _of_open_webui(node, number)]
    system = value_at(chat, "params.system") or chat.get("system")
    ignored = [_settings("Open WebUI"), *([OTHER_BRANCHES] if has_others else [])]
    return {**_kept(data), "messages": messages, **({"system": system} if system else {})}, ignored


def _of_open_webui(node: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    text = node.get("content")
    kept = {key: node[key] for key in ("role", "files") if key in node}
    if node.get("role") != "assistant" or not isinstance(text, str):
        yield {**kept, "content": text}
        return
    parts: list[dict[str, Any]] = []
    position = 0
    while (block := _DETAILS.search(text, position)) is not None:
        end = text.find(_END_OF_DETAILS, block.end())
        if end < 0:
            break
        parts.append({"type": "text", "text": text[position : block.start()]})
        parts += _of_details(block[1], block[2], text[block.end() : end], number)
        position = end + len(_END_OF_DETAILS)
    parts.append({"type": "text", "text": text[position:].lstrip() if position else text})
    content = [part for part in parts if part["type"] != "text" or part["text"].strip()]
    is_unlearned = node.get("done") is False or value_at(node, "annotation.rating") == -1
    yield {**kept, "content": content, **({"weight": 0} if is_unlearned else {})}


def _of_details(kind: str, attributes: str, text: str, number: int) -> list[dict[str, Any]]:
    inside = html.unescape(_SUMMARY.sub("", text, count=1)).strip()
    if kind == "reasoning":
        return [{"type": "reasoning", "text": "\n".join(line.removeprefix("> ") for line in inside.splitlines())}]
    if kind != "tool_calls":
        raise ValueError(f"a block {excerpt(kind, _SHOWN)} cannot be read: message {number}. Delete the message")
    fields = {name: _decoded(html.unescape(value)) for name, value in _ATTRIBUTE.findall(attributes)}
    call = {"toolCallId": fields.get("id"), "toolName": fields.get("name")}
    parts = [{"type": "tool-call", **call, "input": _decoded(fields.get("arguments"))}]
    if fields.get("done") is True or "result" in fields:
        parts.append({"type": "tool-result", **call, "output": fields.get("result", inside)})
    return parts


def _decoded(value: Any) -> Any:
    """Value of a JSON text. Every other value stays as it is."""
    decoded = try_call(lambda: decode(value)) if isinstance(value, str) else value
    return value if isinstance(decoded, Exception) else decoded


def is_libre_chat(data: Mapping[str, Any]) -> bool:
    """True for a conversation of LibreChat, as a list or as a tree."""
    return any(_have(data.get(name), "messageId", "isCreatedByUser") for name in ("messages", "messagesTree"))


def read_libre_chat(data: Mapping[str, Any]) -> Read:
    """The branch of the newest message, because the export does not say which one was shown."""
    listed = data.get("messages") if isinstance(data.get("messages"), list) else data["messagesTree"]
    branch, has_others = shown_branch(listed)
    ignored = [_settings("LibreChat"), *([OTHER_BRANCHES] if has_others else [])]
    messages = [_of_libre_chat(message) for message in branch]
    system = value_at(data, "options.promptPrefix") or value_at(data, "options.system")
    named = {"id": data["conversationId"]} if data.get("conversationId") else {}
    return {**named, "messages": messages, **({"system": system} if system else {})}, ignored


def _of_libre_chat(message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("plugin") or message.get("plugins"):
        raise ValueError(
            "calls of plugins, as LibreChat had them first, cannot be read. Delete the message with plugin"
        )
    content = message.get("content")
    parts = [part for item in content for part in _part_of_libre_chat(item)] if isinstance(content, list) else []
    is_unlearned = (
        any(message.get(name) is True for name in ("error", "unfinished"))
        or message.get("finish_reason") in _CUT_OFF
        or value_at(message, "feedback.rating") == "thumbsDown"
    )
    return {
        "role": "user" if message.get("isCreatedByUser") is True else "assistant",
        "content": parts or message.get("text"),
        **{key: message[key] for key in ("files", "attachments") if key in message},
        **({"weight": 0} if is_unlearned else {}),
    }


def _part_of_libre_chat(part: Any) -> list[Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "think":
        return [{"type": "reasoning", "text": part.get("think")}]
    call = part.get("tool_call") if isinstance(part, Mapping) else None
    if kind == "tool_call" and isinstance(call, Mapping):
        result = {"type": "tool-result", "toolCallId": call.get("id"), "output": call.get("output")}
        return [{"type": "tool-call", **call}, *([result] if "output" in call else [])]
    return [part]


def is_llama_cpp(data: Mapping[str, Any]) -> bool:
    """True for a conversation of the page of llama.cpp's server."""
    return isinstance(data.get("conv"), Mapping) and _have(data.get("messages"), "role", "content")


def read_llama_cpp(data: Mapping[str, Any]) -> Read:
    """The branch that ends at `currNode`. Attachments are in `extra`."""
    branch, has_others = shown_branch(data["messages"], data["conv"].get("currNode"))
    ignored = [_settings("llama.cpp"), *([OTHER_BRANCHES] if has_others else [])]
    keys = ("role", "content", "thinking", "reasoning_content", "tool_calls", "tool_call_id")
    messages = []
    for message in branch:
        if message.get("role") == "root" or message.get("type") == "root":
            continue
        calls = parsed(message.get("toolCalls", message.get("tool_calls")))
        answered = message.get("toolCallId", message.get("tool_call_id"))
        reasoning = message.get("reasoningContent", message.get("thinking"))
        messages.append(
            {
                **{key: message[key] for key in keys if message.get(key)},
                "role": message.get("role"),
                "content": message.get("content"),
                **({"attachments": message["extra"]} if message.get("extra") else {}),
                **({"tool_calls": calls} if calls else {}),
                **({"tool_call_id": answered} if answered else {}),
                **({"reasoning": reasoning} if reasoning else {}),
            }
        )
    return {**_kept(data["conv"]), "messages": messages}, ignored


def is_text_generation(data: Mapping[str, Any]) -> bool:
    """True for a history of text-generation-webui, of today or of its first year."""
    return any(
        isinstance(data.get(name), list) and shown in data
        for name, shown in (("internal", "visible"), ("data", "data_visible"))
    )


def read_text_generation(data: Mapping[str, Any]) -> Read:
    """The pairs of texts as the model read them. The shown texts are for the page."""
    pairs = data["internal"] if isinstance(data.get("internal"), list) else data["data"]
    messages: list[dict[str, Any]] = []
    for number, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) < 2 or not all(isinstance(text, str) for text in pair[:2]):
            raise ValueError(f"turn {number} is not a pair of two texts. Correct it, or export the chat again")
        messages += [] if pair[0] in ("", _GREETING) else [{"role": "user", "content": pair[0]}]
        messages += [{"role": "assistant", "content": pair[1]}] if pair[1] else []
    entries = data["metadata"] if isinstance(data.get("metadata"), Mapping) else {}
    if media := next((name for name, entry in entries.items() if _attached(entry)), None):
        raise ValueError(f"attachments of {excerpt(media, _SHOWN)} cannot be read: only text is read. Remove the turn")
    return {"messages": messages}, [_settings("text-generation-webui")]


def _attached(entry: Any) -> bool:
    return isinstance(entry, Mapping) and bool(entry.get("attachments"))


def is_chatbox(data: Mapping[str, Any]) -> bool:
    """True for a session of Chatbox."""
    return _have(data.get("messages"), "role", "contentParts")


def read_chatbox(data: Mapping[str, Any]) -> Read:
    """The messages of a session. A call has its result in one part."""
    messages = []
    for message in data["messages"]:
        parts = message["contentParts"]
        content = [part for item in parts for part in _parts_of_chatbox(item)] if isinstance(parts, list) else parts
        is_cut = message.get("finishReason") in _CUT_OFF or bool(message.get("error"))
        messages.append(
            {
                "role": message["role"],
                "content": content,
                **{key: message[key] for key in ("files",) if key in message},
                **({"weight": 0} if is_cut else {}),
            }
        )
    threads = ["record.threads: earlier threads of the session"] if data.get("threads") else []
    others = [OTHER_BRANCHES] if data.get("messageForksHash") else []
    return {**_kept(data), "messages": messages}, [_settings("Chatbox"), *threads, *others]


def _parts_of_chatbox(part: Any) -> list[Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "info":
        return []
    if kind == "tool-call" and part.get("state") in ("result", "error"):
        return [part, {"type": "tool-result", "toolCallId": part.get("toolCallId"), "output": part.get("result")}]
    return [part]


def is_ai_studio(data: Mapping[str, Any]) -> bool:
    """True for a prompt that Google AI Studio saved."""
    return isinstance(value_at(data, "chunkedPrompt.chunks"), list)


def read_ai_studio(data: Mapping[str, Any]) -> Read:
    """The chunks of the chat. Thoughts come in chunks of their own before a reply."""
    messages: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for number, chunk in enumerate(data["chunkedPrompt"]["chunks"]):
        text = chunk.get("text") if isinstance(chunk, Mapping) else None
        if not isinstance(text, str):
            keys = excerpt(", ".join(chunk), _SHOWN) if isinstance(chunk, Mapping) else type(chunk).__name__
            raise ValueError(f"chunk {number} has no text: {keys}. Only text is read: remove the chunk")
        if chunk.get("isThought") is True:
            thoughts.append(text)
            continue
        reasoning = {"reasoning": "\n\n".join(thoughts)} if thoughts and chunk.get("role") == "model" else {}
        is_cut = chunk.get("finishReason") in _CUT_OFF
        messages.append({"role": chunk.get("role"), "content": text, **reasoning, **({"weight": 0} if is_cut else {})})
        thoughts = []
    system = data.get("systemInstruction")
    texts = _texts(system)
    return {"messages": messages, **({"system": texts} if texts else {})}, [_settings("Google AI Studio")]


def _texts(system: Any) -> str:
    parts = system.get("parts", [system]) if isinstance(system, Mapping) else []
    texts: Sequence[Any] = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n\n".join(text for text in texts if isinstance(text, str) and text)


def is_character_ai(data: Mapping[str, Any]) -> bool:
    """True for a chat of Character.AI."""
    return _have(data.get("msgs"), "src", "text") and all(
        isinstance(value_at(message, "src.is_human"), bool) for message in data["msgs"]
    )


def read_character_ai(data: Mapping[str, Any]) -> Read:
    """The messages of a chat."""
    messages = [
        {
            "role": "user" if value_at(message, "src.is_human") else "assistant",
            "content": message["text"],
            **({"name": name} if (name := value_at(message, "src.name")) else {}),
        }
        for message in data["msgs"]
    ]
    return {"messages": messages}, [_settings("Character.AI")]


def is_next_chat(data: Mapping[str, Any]) -> bool:
    """True for a session of NextChat."""
    context = value_at(data, "mask.context")
    is_mask = context == [] or _have(context, "role", "content")
    return is_mask and _have(data.get("messages"), "role", "content")


def read_next_chat(data: Mapping[str, Any]) -> Read:
    """Messages of the session's mask, which the model reads first, followed by those since the context was cleared."""
    cleared = data.get("clearContextIndex")
    begin = cleared if isinstance(cleared, int) and 0 < cleared < len(data["messages"]) else 0
    given = (*data["mask"]["context"], *data["messages"][begin:])
    messages = [message for number, item in enumerate(given) for message in _of_next_chat(item, number)]
    earlier = ["record.messages: messages from before the context was cleared"] if begin else []
    return {**_kept(data), "messages": messages}, [_settings("NextChat"), *earlier]


def _of_next_chat(message: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """A message, with its calls and their results before its text."""
    tools = message.get("tools") or []
    if tools and not _have(tools, "id", "function"):
        raise ValueError(f"tools of message {number} are not calls with an id and a function. Delete the message")
    if tools:
        calls = [{"id": tool["id"], "function": tool["function"]} for tool in tools]
        yield {"role": message["role"], "content": None, "tool_calls": calls}
        for tool in tools:
            result = tool.get("errorMsg") if tool.get("isError") else tool.get("content")
            yield {"role": "tool", "tool_call_id": tool["id"], "content": result}
    if not tools or message["content"]:
        is_error = {"weight": 0} if message.get("isError") else {}
        yield {**{key: message[key] for key in ("role", "content")}, **is_error}


def is_grok(data: Mapping[str, Any]) -> bool:
    """True for a conversation of Grok's export of an account."""
    return isinstance(data.get("conversation"), Mapping) and _have(data.get("responses"), "response")


def read_grok(data: Mapping[str, Any]) -> Read:
    """The branch of the newest message."""
    responses = [item["response"] for item in data["responses"]]
    if not _have(responses, "sender", "message"):
        raise ValueError("a response has no sender or no message. Export the account again")
    linked = [
        {**message, "id": message.get("_id"), "parentId": message.get("parent_response_id")} for message in responses
    ]
    branch, has_others = shown_branch(linked)
    ignored = [_settings("Grok"), *([OTHER_BRANCHES] if has_others else [])]
    messages = [
        {
            "role": str(message["sender"]).lower(),
            "content": message["message"],
            **({"attachments": message["file_attachments"]} if message.get("file_attachments") else {}),
            **({"weight": 0} if message.get("error") else {}),
        }
        for message in branch
    ]
    return {**_kept(data["conversation"]), "messages": messages}, ignored
