"""One chat in each format that `openai_messages` reads, and the words of docs/logs.md on how each format is known.

`python -m tests.docs.tables` writes the page's table from FORMATS, and tests read the samples.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

SCHEMA = {"type": "object", "properties": {"order": {"type": "string"}}}
UPPER = {"type": "OBJECT", "properties": {"order": {"type": "STRING"}}}
ASKED, DONE = "Where is order 7?", "It is lost."
USE = {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"order": "7"}}
FIELDS = {"name": "look_up", "description": "Look up."}


def anthropic(*results: Any) -> dict[str, Any]:
    """A chat of Anthropic's API, with other parts in the place of the result."""
    thinking = {"type": "thinking", "thinking": "7?", "signature": "x"}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": '{"state": "lost"}'}
    return {
        "system": [{"type": "text", "text": "You run the desk."}],
        "tools": [{**FIELDS, "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": ASKED},
            {"role": "assistant", "content": [thinking, {"type": "text", "text": "I look."}, USE]},
            {"role": "user", "content": [*(results or (result,))]},
            {"role": "assistant", "content": [{"type": "text", "text": DONE}]},
        ],
    }


BEDROCK = {
    "system": [{"text": "You run the desk."}],
    "toolConfig": {"tools": [{"toolSpec": {**FIELDS, "inputSchema": {"json": SCHEMA}}}]},
    "messages": [
        {"role": "user", "content": [{"text": ASKED}]},
        {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "7?"}}},
                {"text": "I look."},
                {"toolUse": {"toolUseId": "t1", "name": "look_up", "input": {"order": "7"}}},
            ],
        },
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"json": {"state": "lost"}}]}}]},
        {"role": "assistant", "content": [{"text": DONE}]},
    ],
}
GEMINI = {
    "systemInstruction": {"parts": [{"text": "You run the desk."}]},
    "tools": [{"functionDeclarations": [{**FIELDS, "parameters": UPPER}]}],
    "contents": [
        {"role": "user", "parts": [{"text": ASKED}]},
        {
            "role": "model",
            "parts": [
                {"text": "7?", "thought": True},
                {"text": "I look."},
                {"functionCall": {"name": "look_up", "args": {"order": "7"}}},
            ],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "look_up", "response": {"state": "lost"}}}]},
        {"role": "model", "parts": [{"text": DONE}]},
    ],
}
TOOL = {"type": "function", "function": {**FIELDS, "parameters": SCHEMA}}
SYSTEM = {"role": "system", "content": "You run the desk."}
AI_SDK_MODEL = {
    "tools": [TOOL],
    "messages": [
        SYSTEM,
        {"role": "user", "content": [{"type": "text", "text": ASKED}]},
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "text": "7?"},
                {"type": "text", "text": "I look."},
                {"type": "tool-call", "toolCallId": "t1", "toolName": "look_up", "input": {"order": "7"}},
            ],
        },
        {
            "role": "tool",
            "content": [
                {
                    "type": "tool-result",
                    "toolCallId": "t1",
                    "toolName": "look_up",
                    "output": {"type": "json", "value": {"state": "lost"}},
                }
            ],
        },
        {"role": "assistant", "content": DONE},
    ],
}
AI_SDK_PAGE = {
    "tools": [TOOL],
    "messages": [
        SYSTEM,
        {"role": "user", "parts": [{"type": "text", "text": ASKED}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "step-start"},
                {"type": "reasoning", "text": "7?"},
                {"type": "text", "text": "I look."},
                {
                    "type": "tool-look_up",
                    "toolCallId": "t1",
                    "state": "output-available",
                    "input": {"order": "7"},
                    "output": {"state": "lost"},
                },
                {"type": "step-start"},
                {"type": "text", "text": DONE},
            ],
        },
    ],
}
AI_SDK_4 = {
    "tools": [TOOL],
    "messages": [
        SYSTEM,
        {"role": "user", "content": ASKED, "parts": [{"type": "text", "text": ASKED}]},
        {
            "role": "assistant",
            "content": f"I look.{DONE}",
            "parts": [
                {"type": "step-start"},
                {"type": "reasoning", "reasoning": "7?", "details": [{"type": "text", "text": "7?"}]},
                {"type": "text", "text": "I look."},
                {
                    "type": "tool-invocation",
                    "toolInvocation": {
                        "state": "result",
                        "toolCallId": "t1",
                        "toolName": "look_up",
                        "args": {"order": "7"},
                        "result": {"state": "lost"},
                    },
                },
                {"type": "step-start"},
                {"type": "text", "text": DONE},
            ],
        },
    ],
}
OTEL = {
    "tools": [TOOL],
    "messages": [
        {"role": "system", "parts": [{"type": "text", "content": "You run the desk."}]},
        {"role": "user", "parts": [{"type": "text", "content": ASKED}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "7?"},
                {"type": "text", "content": "I look."},
                {"type": "tool_call", "id": "t1", "name": "look_up", "arguments": {"order": "7"}},
            ],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "t1", "response": {"state": "lost"}}]},
        {"role": "assistant", "parts": [{"type": "text", "content": DONE}]},
    ],
}
TURNS = (("user", ASKED), ("assistant", DONE))
OPENAI = [{"role": role, "content": text} for role, text in TURNS]
RESPONSES = [
    {"role": "user", "content": ASKED},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "7?"}]},
    {"type": "function_call", "call_id": "t1", "name": "look_up", "arguments": '{"order": "7"}'},
    {"type": "function_call_output", "call_id": "t1", "output": '{"state": "lost"}'},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": DONE}]},
]
LANGCHAIN = [
    {"type": "human", "content": ASKED},
    {"type": "ai", "content": "", "tool_calls": [{"name": "look_up", "args": {"order": "7"}, "id": "t1"}]},
    {"type": "tool", "content": '{"state": "lost"}', "tool_call_id": "t1"},
    {"type": "ai", "content": DONE},
]
LANGCHAIN_DATA = [{"type": message["type"], "data": message} for message in LANGCHAIN]
LANGCHAIN_KWARGS = [
    {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", f"{message['type'].title().replace('Ai', 'AI')}Message"],
        "kwargs": message,
    }
    for message in LANGCHAIN
]
PYDANTIC_AI = [
    {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": ASKED}]},
    {
        "kind": "response",
        "parts": [{"part_kind": "tool-call", "tool_name": "look_up", "args": {"order": "7"}, "tool_call_id": "t1"}],
    },
    {"kind": "request", "parts": [{"part_kind": "tool-return", "content": {"state": "lost"}, "tool_call_id": "t1"}]},
    {"kind": "response", "parts": [{"part_kind": "text", "content": DONE}]},
]
HAYSTACK = [
    {"role": "user", "content": [{"text": ASKED}]},
    {
        "role": "assistant",
        "content": [{"tool_call": {"tool_name": "look_up", "arguments": {"order": "7"}, "id": "t1"}}],
    },
    {
        "role": "tool",
        "content": [{"tool_call_result": {"result": "lost", "origin": {"id": "t1", "tool_name": "look_up"}}}],
    },
    {"role": "assistant", "content": [{"text": DONE}]},
]
LLAMA_INDEX = [{"role": role, "blocks": [{"block_type": "text", "text": text}]} for role, text in TURNS]
SEMANTIC_KERNEL = [{"role": role, "items": [{"content_type": "text", "text": text}]} for role, text in TURNS]
COHERE = {
    "message": "And order 8?",
    "chat_history": [{"role": "USER", "message": ASKED}, {"role": "CHATBOT", "message": DONE}],
    "preamble": "You run the desk.",
}
REQUEST = {"messages": [{"role": "user", "content": ASKED}]}
COMPLETION = {"choices": [{"message": {"role": "assistant", "content": DONE}}]}
_CONTENTS = {"contents": [{"role": "user", "parts": [{"text": ASKED}]}]}
_CANDIDATES = {"candidates": [{"content": {"role": "model", "parts": [{"text": DONE}]}, "finishReason": "STOP"}]}
_CONVERSED = {"output": {"message": {"role": "assistant", "content": [{"text": DONE}]}}, "stopReason": "end_turn"}
EXCHANGES: tuple[dict[str, Any], ...] = (
    {"request": REQUEST, "response": COMPLETION},
    {"request": {"body": REQUEST}, "response": {"body": COMPLETION}},
    {"request_body": json.dumps(REQUEST), "response_body": json.dumps(COMPLETION)},
    {**REQUEST, "response": DONE},
    {"full_request": _CONTENTS, "full_response": _CANDIDATES},
    {"input": {"inputBodyJson": REQUEST}, "output": {"outputBodyJson": _CONVERSED}},
    {"modelInput": REQUEST, "modelOutput": _CONVERSED},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of chats: its row of docs/logs.md, and chats in it that are read, and others that are quarantined."""

    name: str
    known_by: str
    chats: tuple[Any, ...]
    quarantined: tuple[Any, ...] = ()


def _chats(*chats: Any) -> tuple[Any, ...]:
    """Records of chats, of which each may also be a list of messages."""
    return tuple({"messages": chat} if isinstance(chat, list) else chat for chat in chats)


FORMATS = (
    Format(
        name="Anthropic's messages",
        known_by="parts `tool_use`, `tool_result`, `thinking`; `system` next to messages; tools with `input_schema`",
        chats=(anthropic(),),
    ),
    Format(
        name="Bedrock's Converse",
        known_by="parts `toolUse`, `toolResult`, `reasoningContent`; `toolConfig`",
        chats=(BEDROCK,),
    ),
    Format(
        name="Gemini",
        known_by=(
            "`contents` with `parts`, `functionCall`, `functionResponse`; `systemInstruction`; `functionDeclarations`"
        ),
        chats=(GEMINI,),
    ),
    Format(
        name="AI SDK, messages of the model or of the page",
        known_by="parts `tool-call` and `tool-result`, or `tool-NAME`, or `tool-invocation`",
        chats=(AI_SDK_MODEL, AI_SDK_PAGE, AI_SDK_4),
    ),
    Format(
        name="OpenTelemetry's messages of generative AI",
        known_by="parts `tool_call`, `tool_call_response`",
        chats=(OTEL,),
    ),
    Format(
        name="OpenAI's Responses API",
        known_by=(
            "items `function_call`, `function_call_output`, `reasoning`. A response that continues another one "
            "(`previous_response_id`) is quarantined"
        ),
        chats=_chats(RESPONSES),
        quarantined=({**REQUEST, "previous_response_id": "resp_1"},),
    ),
    Format(
        name="LangChain and LangGraph",
        known_by="`type` `human`, `ai` or `tool` instead of a role; `kwargs`; `data`",
        chats=_chats(LANGCHAIN, LANGCHAIN_KWARGS, LANGCHAIN_DATA),
    ),
    Format(
        name="pydantic-ai",
        known_by="`kind` `request` or `response` with `parts` that have a `part_kind`",
        chats=_chats(PYDANTIC_AI),
    ),
    Format(
        name="Haystack, LlamaIndex, Semantic Kernel",
        known_by="parts `tool_call` and `tool_call_result`; `blocks`; `items`",
        chats=_chats(HAYSTACK, LLAMA_INDEX, SEMANTIC_KERNEL),
    ),
    Format(name="Cohere", known_by="`message` with `chat_history` and `preamble`", chats=(COHERE,)),
    Format(
        name="an exchange",
        known_by=(
            "`request` and `response`, also with a `body` in each; `request_body` and `response_body` (Helicone); "
            "`messages` with a `response` next to them (LiteLLM); `full_request` and `full_response` (Vertex AI); "
            "`inputBodyJson` and `outputBodyJson` (Bedrock's log of invocations); `modelInput` and `modelOutput` "
            "(Bedrock's batches). Each may be JSON in a text. The response is a completion of OpenAI, Anthropic, "
            "Gemini, Bedrock or Cohere, or a text. If the messages already end with the agent's reply, the response is "
            "left out"
        ),
        chats=EXCHANGES,
    ),
)
"""Formats in the order of the page."""
