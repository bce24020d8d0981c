"""Conversations with all parts, and their messages in the format of chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo.messages import Message, Tool, ToolCall
from grpo.renderers.chat_template import Renderer

LOOK_UP = Tool(
    name="look_up",
    description="Find an order",
    parameters={
        "type": "object",
        "properties": {"order": {"type": "string", "description": "its number"}, "most": {"type": "integer"}},
        "required": ["order"],
    },
)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def reply(text: str, reasoning: str | None = None) -> Message:
    return Message(role="assistant", content=text, reasoning=reasoning)


def call(reasoning: str | None = None, **arguments: Any) -> Message:
    calls = (ToolCall(name="look_up", arguments=arguments),)
    return Message(role="assistant", content="", tool_calls=calls, reasoning=reasoning)


def result(text: str) -> Message:
    return Message(role="tool", content=text)


TALK = (
    system(" Be brief.\n"), user("hello \n"), reply("hi there", "greet"), user("\n\nand\n\n now? "),
    reply("later", "wait"), user("the end"), reply("bye", "end"),
)  # fmt: skip
ERRAND = (
    system("Be brief."), user("order 12"), call("look", order="12 b", most=3),
    result('{"price": 5, "note": "a\\n\\"b\\""}'), reply("It is 5.", "tell"), user("thanks"), reply("welcome", "thank"),
)  # fmt: skip
LONG_ERRAND = (
    user("hello"), reply("yes?", "ask"), user("the order"), call("look", order="7"), result("line\n\"quoted\" it's"),
    call("again", order="8"), result("ok"), reply("done", "tell"),
)  # fmt: skip


def without_reasoning(conversation: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(replace(message, reasoning=None) for message in conversation)


def whole(renderer: Renderer, conversation: Sequence[Message]) -> str:
    """Conversation rendered at once by the renderer's template, as transformers renders it."""
    messages: list[dict[str, Any]] = []
    name, number = "", ""
    for index, message in enumerate(conversation):
        rendered: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            name, number = message.tool_calls[0].name, f"call{index:03d}00"
            rendered["tool_calls"] = [{**part, "id": number} for part in message.to_template()["tool_calls"]]
        if message.role == "tool":
            rendered |= {"name": name, "tool_call_id": number}
        if message.reasoning:
            text = message.reasoning
            rendered |= {"reasoning_content": text, "reasoning": text, "thinking": text}
        messages.append(rendered)
    tools = [tool.to_template() for tool in renderer.tools] or None
    rendering = renderer.tokenizer.apply_chat_template
    return str(rendering(messages, tools=tools, tokenize=False, chat_template=renderer.template))
