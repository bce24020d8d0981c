"""Requests of OpenAI's Responses API, read as requests of the chat API, so that both have one implementation.

    instructions, input items ─► messages      message + function_call items ─► an assistant message with its calls
    tools, text.format, …     ─► tools, response_format, …
    previous_response_id      ─► the turn that the conversation goes on from

All fields that the Agents SDK sends are here. A field that would change the reply and is not supported is refused with
its name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError

from grpo.serving.protocol.api_errors import APIError, validation_error
from grpo.serving.protocol.chat_request import MAX_MESSAGES, ChatRequest
from grpo.serving.protocol.chat_tools import MAX_TOOLS, FunctionName, FunctionTool, FunctionType, JsonSchema
from grpo.serving.protocol.request_parts import MAX_PARTS, NAME_CHARACTERS, TAG, Ignored, Part, refused
from grpo.serving.protocol.sampling_request import LABEL_CHARACTERS, Metadata, StreamOptions

PREFIX = "resp_"
"""Prefix of the id of a response. The id of its turn follows."""
_PARAMS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
}
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def _readable(value: Any) -> Any:
    if isinstance(value, str) and value not in _TEXTS:
        raise ValueError(f"{value[:40]!r} is not read. This model reads text")
    return value


class InputPart(Part):
    """Part of a message, or of the output of a call."""

    type: Annotated[Literal["input_text", "output_text", "text", "refusal"], BeforeValidator(_readable)]
    text: str | None = None
    refusal: str | None = None
    annotations: Ignored
    logprobs: Ignored
    prompt_cache_breakpoint: Ignored

    def to_chat(self) -> dict[str, Any]:
        """Part of a chat message."""
        kind = _TEXTS[self.type]
        return {"type": kind, kind: self.text if kind == "text" else self.refusal}


def _form_of_words(value: Any) -> str | None:
    return f"{TAG}text" if isinstance(value, str) else f"{TAG}parts" if isinstance(value, list) else None


Words = Annotated[
    Annotated[str, Tag(f"{TAG}text")]
    | Annotated[list[InputPart], Field(fail_fast=True, max_length=MAX_PARTS), Tag(f"{TAG}parts")],
    Discriminator(
        _form_of_words, custom_error_type="content_type", custom_error_message="it is a text or a list of parts"
    ),
]


class MessageItem(Part):
    """Message of a conversation."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Words
    id: Ignored
    phase: Ignored
    status: Ignored


class CallItem(Part):
    """Call that the model has made."""

    type: Literal["function_call"]
    call_id: str = Field(max_length=NAME_CHARACTERS)
    name: str = Field(min_length=1, max_length=200)
    arguments: str = ""
    id: Ignored
    status: Ignored
    namespace: Ignored


class OutputItem(Part):
    """Result of a call."""

    type: Literal["function_call_output"]
    call_id: str = Field(max_length=NAME_CHARACTERS)
    output: Words
    id: Ignored
    status: Ignored


class ReasoningItem(Part):
    """Reasoning before a reply. It has no effect, because chat templates do not print it again."""

    type: Literal["reasoning"]
    id: Ignored
    status: Ignored
    summary: Ignored
    content: Ignored
    encrypted_content: Ignored


_ITEMS = ("message", "function_call", "function_call_output", "reasoning")


def _form_of_item(value: Any) -> str | None:
    kind = value.get("type", "message") if isinstance(value, dict) else None
    return f"{TAG}{kind or 'message'}" if kind in (*_ITEMS, None) and isinstance(value, dict) else None


Item = Annotated[
    Annotated[MessageItem, Tag(f"{TAG}message")]
    | Annotated[CallItem, Tag(f"{TAG}function_call")]
    | Annotated[OutputItem, Tag(f"{TAG}function_call_output")]
    | Annotated[ReasoningItem, Tag(f"{TAG}reasoning")],
    Discriminator(
        _form_of_item,
        custom_error_type="item_type",
        custom_error_message=f"an item of the input is an object with the type {', '.join(_ITEMS)}",
    ),
]


def _form_of_input(value: Any) -> str | None:
    return f"{TAG}text" if isinstance(value, str) else f"{TAG}items" if isinstance(value, list) else None


class ResponsesTool(FunctionTool):
    """Tool that the client runs."""

    type: FunctionType
    defer_loading: Annotated[None, refused("tools are not searched for. Send the tools that the turn needs")] = None


class NamedChoice(Part):
    """One tool, which must be called."""

    type: FunctionType
    name: FunctionName


class AllowedChoice(Part):
    """Tools that may be called (mode `auto`), or of which one must be called (`required`)."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], Field(min_length=1, max_length=MAX_TOOLS)]


def _form_of_choice(value: Any) -> str:
    if isinstance(value, dict):
        return f"{TAG}allowed" if value.get("type") == "allowed_tools" else f"{TAG}named"
    return f"{TAG}word"


class SchemaFormat(JsonSchema):
    """Format of the reply: JSON that is valid by a schema."""

    type: Literal["json_schema"]


class PlainFormat(Part):
    """Format of the reply without a schema."""

    type: Literal["text", "json_object"]


def _form_of_format(value: Any) -> str:
    return f"{TAG}schema" if isinstance(value, dict) and value.get("type") == "json_schema" else f"{TAG}plain"


class TextConfig(Part):
    """Format of the reply."""

    format: (
        Annotated[
            Annotated[SchemaFormat, Tag(f"{TAG}schema")] | Annotated[PlainFormat, Tag(f"{TAG}plain")],
            Discriminator(_form_of_format),
        ]
        | None
    ) = None
    verbosity: Annotated[
        None,
        refused("replies have no other verbosity. Send max_output_tokens to limit their length", neutral=("medium",)),
    ] = None


class Reasoning(Part):
    """Settings of reasoning. This model has none, so only neutral values are accepted."""

    effort: Annotated[None, refused("the effort of this model's reasoning cannot be set. Leave it out")] = None
    summary: Annotated[None, refused("reasoning is not summarized. Leave it out", neutral=("auto",))] = None
    generate_summary: Annotated[None, refused("reasoning is not summarized. Leave it out")] = None
    context: Ignored


class ResponsesRequest(Part):
    """Body of `POST /v1/responses`, and two fields of our own: `conversation_id` and `strategy`."""

    model: str = Field(max_length=NAME_CHARACTERS)
    input: Annotated[
        Annotated[str, Tag(f"{TAG}text")]
        | Annotated[list[Item], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES), Tag(f"{TAG}items")],
        Discriminator(
            _form_of_input, custom_error_type="input_type", custom_error_message="it is a text or a list of items"
        ),
    ]
    instructions: str | None = None
    previous_response_id: str | None = Field(default=None, max_length=NAME_CHARACTERS)
    tools: Annotated[list[ResponsesTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}word")]
            | Annotated[NamedChoice, Tag(f"{TAG}named")]
            | Annotated[AllowedChoice, Tag(f"{TAG}allowed")],
            Discriminator(_form_of_choice),
        ]
        | None
    ) = None
    parallel_tool_calls: bool = True
    text: TextConfig | None = None
    include: Annotated[list[str], Field(max_length=16)] | None = None
    """`message.output_text.logprobs`. Other values have no effect, because this server has nothing that they name."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    stream: bool = False
    stream_options: StreamOptions | None = None
    store: bool = True
    metadata: Metadata | None = None
    user: str | None = Field(default=None, max_length=LABEL_CHARACTERS)
    conversation_id: str | None = Field(default=None, max_length=NAME_CHARACTERS)
    strategy: str | None = Field(default=None, max_length=NAME_CHARACTERS)
    background: Annotated[None, refused("this server makes no responses in the background. Leave it out")] = None
    context_management: Annotated[None, refused("this server does not compact contexts. Leave it out")] = None
    conversation: Annotated[None, refused("send previous_response_id instead")] = None
    max_tool_calls: Annotated[None, refused("the client runs the tools, so limit the calls there. Leave it out")] = None
    moderation: Annotated[None, refused("this server does not moderate. Leave it out")] = None
    prompt: Annotated[None, refused("this server keeps no prompts. Send instructions and input")] = None
    reasoning: Reasoning | None = None
    truncation: Annotated[
        None, refused("this server does not truncate inputs. Send fewer messages", neutral=("disabled",))
    ] = None
    prompt_cache_key: Ignored
    prompt_cache_options: Ignored
    prompt_cache_retention: Ignored
    safety_identifier: Ignored
    service_tier: Ignored

    @property
    def with_logprobs(self) -> bool:
        """True if the request asks for the log-probabilities of the text."""
        return "message.output_text.logprobs" in (self.include or ())

    def to_chat(self) -> ChatRequest:
        """Convert to a request of the chat API. Raises `APIError` 400 with the parameter's name in this API."""
        given: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("model", "parallel_tool_calls", "temperature", "top_p", "stream", "store", "metadata", "user",
                         "conversation_id", "strategy")
        }  # fmt: skip
        given |= {"max_completion_tokens": self.max_output_tokens, "messages": self._messages()}
        given |= {"tools": self._tools(), "tool_choice": self._choice(), "response_format": self._format()}
        if self.with_logprobs or self.top_logprobs:
            given |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        try:
            request = ChatRequest.model_validate(given)
        except ValidationError as invalid:
            fault = invalid.errors(include_url=False, include_input=False)[0]
            raise renamed(validation_error([{**fault, "loc": ("body", *fault["loc"])}])) from invalid
        request.continues(self.previous_response_id, self.instructions)
        return request

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.instructions and self.previous_response_id is None:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        for item in self.input:
            if isinstance(item, MessageItem):
                messages.append({"role": item.role, "content": _words(item.content)})
            elif isinstance(item, OutputItem):
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _words(item.output)})
            elif isinstance(item, CallItem):
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                messages[-1].setdefault("tool_calls", []).append(call)
        return messages

    def _tools(self) -> list[dict[str, Any]] | None:
        if self.tools is None:
            return None
        return [
            {"type": "function", "function": tool.model_dump(include={"name", "description", "parameters", "strict"})}
            for tool in self.tools
        ]

    def _choice(self) -> Any:
        choice = self.tool_choice
        if isinstance(choice, NamedChoice):
            return _named(choice.name)
        if isinstance(choice, AllowedChoice):
            tools = [_named(tool.name) for tool in choice.tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": tools}}
        return choice

    def _format(self) -> dict[str, Any] | None:
        wanted = None if self.text is None else self.text.format
        if isinstance(wanted, SchemaFormat):
            schema = {"name": wanted.name, "schema": wanted.schema_, "strict": wanted.strict}
            return {"type": "json_schema", "json_schema": schema}
        return None if wanted is None else {"type": wanted.type}


def renamed(error: APIError) -> APIError:
    """The error with the parameter's name in this API."""
    head, dot, rest = (error.param or "").partition(".")
    head, bracket, index = head.partition("[")
    if head in _PARAMS:
        error.param = _PARAMS[head] if head == "messages" else f"{_PARAMS[head]}{bracket}{index}{dot}{rest}"
    return error


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _words(content: str | list[InputPart]) -> Any:
    return content if isinstance(content, str) else [part.to_chat() for part in content]
