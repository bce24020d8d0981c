"""Requests of OpenAI's chat API: a parameter has its effect, or is in `WITHOUT_EFFECT`, or is refused by name.

In every field, null means that the field is absent. If a parameter is not implemented, it is refused when it would
change the words of the reply. It is accepted when it would not, because it is about caching, prices, identifiers or
storage elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self, get_args

from pydantic import Field, PrivateAttr, StringConstraints, field_validator, model_validator

from grpo.config.agent import StrategyName
from grpo.log.ids import turn_of
from grpo.messages import Message, Tool
from grpo.scenario import CATEGORY_CHARACTERS, Domain
from grpo.serving.protocol.chat_messages import ChatMessage, to_messages
from grpo.serving.protocol.chat_response import turn_of_call
from grpo.serving.protocol.chat_tools import (
    MAX_TOOLS,
    AllowedToolsChoice,
    NamedTool,
    ResponseFormat,
    ToolChoice,
    ToolPart,
)
from grpo.serving.protocol.request_parts import Fault, Ignored, refused
from grpo.serving.protocol.sampling_request import Metadata, SamplingRequest
from grpo.strict_json import encode

MAX_MESSAGES = 2000
LABELS = ("category", "domain")
"""Keys of `metadata` that become labels of the conversation's scenario. Other keys have no effect."""
WITHOUT_EFFECT = (
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
)
"""Parameters that are accepted and have no effect on the words of a reply."""
ConversationId = Annotated[str, StringConstraints(pattern=r"^[\w-]{1,64}$")]


class ChatRequest(SamplingRequest):
    """Body of `POST /v1/chat/completions`, with two fields that OpenAI does not have: `conversation_id`, `strategy`."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: Annotated[list[ToolPart], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    """If False, a reply has no more than one call."""
    response_format: ResponseFormat | None = None
    metadata: Metadata | None = None
    """`conversation_id` and labels of the conversation. Other keys have no effect."""
    store: bool = True
    """If False, the turns are logged without consent, so that nothing is trained on them."""
    conversation_id: ConversationId | None = None
    strategy: StrategyName | None = None
    audio: Annotated[None, refused("this model writes text. Leave audio out")] = None
    function_call: Annotated[None, refused("send tool_choice instead", neutral=("none", "auto"))] = None
    functions: Annotated[None, refused("send the functions as tools")] = None
    modalities: Annotated[
        None, refused("this model writes text. Send ['text'], or leave modalities out", neutral=(["text"],))
    ] = None
    moderation: Annotated[None, refused("this server does not moderate. Leave moderation out")] = None
    reasoning_effort: Annotated[None, refused("the effort of this model's reasoning cannot be set. Leave it out")] = (
        None
    )
    verbosity: Annotated[
        None,
        refused(
            "replies have no other verbosity. Send max_completion_tokens to limit their length", neutral=("medium",)
        ),
    ] = None
    web_search_options: Annotated[None, refused("this server does not search the web. Offer a tool that does")] = None
    prediction: Ignored
    prompt_cache_key: Ignored
    prompt_cache_options: Ignored
    prompt_cache_retention: Ignored
    safety_identifier: Ignored
    service_tier: Ignored
    _characters: int = PrivateAttr(0)
    _previous: str | None = PrivateAttr(None)
    _instructions: str | None = PrivateAttr(None)

    @field_validator("web_search_options", mode="before")
    @classmethod
    def _is_not_asked_for(cls, value: Any) -> Any:
        return value if value != {} else {"search_context_size": "medium"}  # an empty object also asks for a search

    @model_validator(mode="after")
    def _are_consistent(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise Fault("top_logprobs", "top_logprobs is read only if logprobs is true")
        self._characters = self._count_characters()
        self._check_metadata()
        names = [tool.function.name for tool in self.tools or ()]
        if len({*names}) != len(names):
            raise Fault("tools", "two tools have one name")
        return self

    def _check_metadata(self) -> None:
        """Raise `Fault` if a label would keep the conversation from becoming a scenario, or a second id differs."""
        labels = self.labels
        if "domain" in labels and labels["domain"] not in get_args(Domain):
            domains = ", ".join(get_args(Domain))
            raise Fault("metadata.domain", f"domain is a label of the conversation, one of {domains}. Rename the key")
        if not 0 < len(labels.get("category", "general")) <= CATEGORY_CHARACTERS:
            message = f"category is a label of the conversation with 1 to {CATEGORY_CHARACTERS} characters"
            raise Fault("metadata.category", message)
        name = (self.metadata or {}).get("conversation_id")
        if None not in (name, self.conversation_id) and name != self.conversation_id:
            raise Fault("metadata.conversation_id", "conversation_id is given twice, with different values")

    def _count_characters(self) -> int:
        functions = [tool.function for tool in self.tools or ()]
        return sum(message.characters for message in self.messages) + sum(
            len(function.name) + len(function.description) + len(encode(function.parameters)) for function in functions
        )

    @property
    def characters(self) -> int:
        """Number of characters that the prompt may have: messages, names, arguments, tools, and white space."""
        return self._characters

    @property
    def conversation(self) -> str | None:
        """Id of the conversation that this request continues, if it is given."""
        return self.conversation_id or (self.metadata or {}).get("conversation_id")

    def continues(self, response_id: str | None, instructions: str | None) -> None:
        """Continue the turn of a response. Its conversation must have begun with these instructions."""
        self._previous = None if response_id is None else turn_of(response_id)
        self._instructions = instructions

    @property
    def previous_turn(self) -> str | None:
        """Id of the turn that this request continues, if it is given."""
        return self._previous

    @property
    def called_turn(self) -> str | None:
        """Id of the turn with the calls whose results the request begins with. None if it begins with no result."""
        call = self.messages[0].tool_call_id if self.messages[0].role == "tool" else None
        return None if call is None else turn_of_call(call)

    @property
    def instructions(self) -> str | None:
        """System message with which the conversation of the previous turn must have begun. None allows any."""
        return self._instructions

    @property
    def call_ids(self) -> frozenset[str]:
        """Ids of the calls in the request's messages."""
        return frozenset(call.id for message in self.messages for call in message.tool_calls or ())

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the conversation."""
        return {name: value for name, value in (self.metadata or {}).items() if name in LABELS and value is not None}

    @property
    def max_reply_tokens(self) -> int | None:
        """Most tokens of a reply, or None if the request sets no limit."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def calls_nothing(self) -> bool:
        """True if `tool_choice` is none, so that a call stays in the content."""
        return self.tool_choice == "none"

    @property
    def must_call(self) -> bool:
        """True if the reply has to be a call."""
        choice = self.tool_choice
        if isinstance(choice, AllowedToolsChoice):
            return choice.allowed_tools.mode == "required"
        return choice == "required" or isinstance(choice, NamedTool)

    @property
    def allowed_names(self) -> tuple[str, ...] | None:
        """Names of the tools that may be called, or None if all of them may."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return (choice.function.name,)
        if isinstance(choice, AllowedToolsChoice):
            return tuple(dict.fromkeys(tool.function.name for tool in choice.allowed_tools.tools))
        return None

    @property
    def has_format(self) -> bool:
        """True if a reply without calls has to be JSON."""
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def strict_names(self) -> frozenset[str]:
        """Names of the tools that need arguments that are valid by their schemas."""
        return frozenset(tool.function.name for tool in self.tools or () if tool.function.strict)

    def to_tools(self) -> tuple[Tool, ...]:
        """Tools that the client runs."""
        return tuple(tool.to_tool() for tool in self.tools or ())

    def to_messages(self, open_calls: Sequence[str] = ()) -> tuple[Message, ...]:
        """Messages as the policy was trained on them. See `grpo.serving.protocol.chat_messages.to_messages`."""
        return to_messages(self.messages, open_calls)
