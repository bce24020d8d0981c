"""Requests of OpenAI's chat API: a parameter has its effect, or the request is refused with its name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from grpo.config.agent import StrategyName
from grpo.messages import Message, Tool, ToolCall
from grpo.policy.policy import Sampling
from grpo.serving.api_errors import invalid_request

MAX_MESSAGES = 2000
MAX_TOOLS = 128
LABELS = ("category", "domain")
"""Labels of a conversation that `metadata` may have, for the scenario that it becomes."""
ConversationId = Annotated[str, StringConstraints(pattern=r"^[\w-]{1,64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class TextPart(_Part):
    """Part of a message; this model reads text alone."""

    type: Literal["text"]
    text: str


class FunctionCall(_Part):
    """Name and arguments of a call, the arguments as JSON text."""

    name: str = Field(min_length=1, max_length=200)
    arguments: str


class CallPart(_Part):
    """Tool call of an assistant message."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall

    def to_call(self, place: str) -> ToolCall:
        """Parse the arguments; raises `APIError` unless they are a JSON object."""
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict) or not _is_json(arguments):
            raise invalid_request(f"{place} is not a JSON object: {self.function.arguments[:80]!r}", param=place)
        return ToolCall(name=self.function.name, arguments=arguments)


class ChatMessage(_Part):
    """Message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: None = None
    refusal: None = None
    tool_calls: list[CallPart] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """Content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class FunctionTool(_Part):
    """Description of a function that the client runs."""

    name: str = Field(pattern=r"^[\w-]{1,64}$")
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: Literal[False] | None = None


class ToolPart(_Part):
    """Tool that the client runs."""

    type: Literal["function"]
    function: FunctionTool


class StreamOptions(_Part):
    """Options of a stream."""

    include_usage: bool = False


class TextFormat(_Part):
    """Format of the reply: text."""

    type: Literal["text"]


class SamplingRequest(_Part):
    """Parameters of sampling that chat and completions share."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=16)
    stop: str | list[str] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    user: str | None = Field(default=None, max_length=512)
    presence_penalty: Literal[0] | None = None
    frequency_penalty: Literal[0] | None = None
    logit_bias: dict[str, float] | None = Field(default=None, max_length=0)

    @field_validator("presence_penalty", "frequency_penalty", mode="before")
    @classmethod
    def _zero(cls, value: object) -> object:
        return 0 if isinstance(value, float) and value == 0 else value

    @model_validator(mode="after")
    def _options_are_read(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options are read with stream alone")
        if len(self.stops) > 4 or not all(self.stops):
            raise ValueError("stop has 1 to 4 texts, none empty")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end the reply."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def to_sampling(
        self, index: int, *, temperature: float, max_new_tokens: int, seed: int, top_k: int = 0, top_logprobs: int = 0
    ) -> Sampling:
        """Sampling of choice `index`, whose seed follows from that of the first; `temperature` is the default."""
        first = Sampling(
            temperature=temperature if self.temperature is None else self.temperature,
            max_new_tokens=max_new_tokens,
            seed=seed,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=top_k,
            top_logprobs=top_logprobs,
        )
        return replace(first, seed=first.turn_seed(index)) if index else first

    def to_seed(self) -> int | None:
        """Seed as a number of 64 bits without sign."""
        return None if self.seed is None else self.seed % 2**64


class ChatRequest(SamplingRequest):
    """Body of `POST /v1/chat/completions`, and two fields of our own: `conversation_id` and `strategy`."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[ToolPart] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: Literal[True] | None = None
    response_format: TextFormat | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    conversation_id: ConversationId | None = None
    strategy: StrategyName | None = None

    @model_validator(mode="after")
    def _are_consistent(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is read with logprobs alone")
        if self.tool_choice == "auto" and not self.tools:
            raise ValueError("tool_choice auto is read with tools alone")
        if not all(_is_json(tool.function.parameters) for tool in self.tools or ()):
            raise ValueError("parameters of a tool are not JSON: a number is not finite, or a text not Unicode")
        names = [tool.function.name for tool in self.tools or ()]
        if len({*names}) != len(names):
            raise ValueError("two tools have one name")
        if unknown := {*(self.metadata or {})} - {"conversation_id", *LABELS}:
            known = ", ".join(("conversation_id", *LABELS))
            raise ValueError(f"metadata has {known}, got {', '.join(sorted(unknown))}")
        if self.store is False:
            raise ValueError("store false: this server logs every conversation that it answers")
        return self

    @property
    def conversation(self) -> str | None:
        """Id of the conversation that this request continues, if it is given."""
        return self.conversation_id or (self.metadata or {}).get("conversation_id")

    @property
    def call_ids(self) -> frozenset[str]:
        """Ids of the calls in its messages."""
        return frozenset(call.id for message in self.messages for call in message.tool_calls or ())

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the conversation."""
        return {name: value for name, value in (self.metadata or {}).items() if name in LABELS}

    @property
    def max_reply_tokens(self) -> int | None:
        """Tokens of a reply at most."""
        return self.max_completion_tokens or self.max_tokens

    def to_tools(self) -> tuple[Tool, ...]:
        """Tools that the client runs."""
        functions = [tool.function for tool in self.tools or ()]
        return tuple(
            Tool(name=function.name, description=function.description, parameters=function.parameters)
            for function in functions
        )

    def to_messages(self, open_calls: Sequence[str] = ()) -> tuple[Message, ...]:
        """Messages as the policy was trained on them; `open_calls` are the ids of calls before the first message.

        Results of several calls become one message with the list of results, in the order of the calls. Raises
        `APIError` for a message of the wrong kind, or a result of another call.
        """
        messages: list[Message] = []
        calls: list[str] = list(open_calls) if self.messages[0].role == "tool" else []
        results: dict[str, str] = {}
        for index, part in enumerate(self.messages):
            place = f"messages[{index}]"
            if part.role == "tool":
                if part.tool_call_id not in {*calls} - {*results}:
                    raise invalid_request(
                        f"{place}.tool_call_id {part.tool_call_id!r} is not an open call of the message before",
                        param=f"{place}.tool_call_id",
                    )
                results[part.tool_call_id] = part.text
                if len(results) == len(calls):
                    messages.append(_tool_results([results[call] for call in calls]))
                    calls, results = [], {}
                continue
            if calls:
                raise invalid_request(f"{place} follows calls without their results", param=place)
            if part.role != "assistant" and (part.tool_calls or part.content is None):
                raise invalid_request(f"{place} is a {part.role} message without text", param=f"{place}.content")
            if part.role in ("system", "developer") and messages:
                raise invalid_request(f"{place}: the system message comes first", param=place)
            parts = part.tool_calls or []
            calls = [call.id for call in parts]
            parsed = tuple(call.to_call(f"{place}.tool_calls[{k}].function.arguments") for k, call in enumerate(parts))
            role = "system" if part.role == "developer" else part.role
            messages.append(Message(role=role, content=part.text, tool_calls=parsed))
        if calls or messages[-1].role not in ("user", "tool"):
            raise invalid_request("the last message is one of the user, or the result of a call", param="messages")
        return tuple(messages)


def _tool_results(results: Sequence[str]) -> Message:
    """Result of one call as it is, of several as a JSON list."""
    if len(results) == 1:
        return Message(role="tool", content=results[0])
    return Message(role="tool", content=json.dumps([_parsed(result) for result in results], ensure_ascii=False))


def _is_json(value: Any) -> bool:
    """Check that numbers are finite, and that texts can be written in UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _parsed(result: str) -> Any:
    try:
        return json.loads(result)
    except (ValueError, RecursionError):
        return result


def comparable(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as they are compared: without white space around their texts, which many clients trim."""
    return [replace(message, content=message.content.strip()).to_template() for message in messages]


def conversation_digest(
    owner: str, user: str | None, tools: Sequence[Mapping[str, Any]], messages: Sequence[Message], calls: Set[str]
) -> str:
    """Digest by which a conversation of a client without ids is known again.

    It has owner, user, tools, messages and the ids of their calls.
    """
    document = [owner, user, list(tools), comparable(messages), sorted(calls)]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
