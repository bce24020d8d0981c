"""Requests of OpenAI's chat API: a parameter has its effect, or stands in `WITHOUT_EFFECT`, or is refused by its name.

Null is absent in every field. What would change the words of the reply and is missing is refused; what would not,
because it is about caching, prices, identifiers or storage elsewhere, is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import Field, PrivateAttr, StringConstraints, field_validator, model_validator

from grpo.config.agent import StrategyName
from grpo.messages import Message, Tool
from grpo.serving.chat_messages import ChatMessage, to_messages
from grpo.serving.chat_tools import (
    MAX_TOOLS,
    AllowedToolsChoice,
    NamedTool,
    ResponseFormat,
    ToolChoice,
    ToolPart,
)
from grpo.serving.ids import turn_of
from grpo.serving.request_parts import Fault, Ignored, refused
from grpo.serving.sampling_request import Metadata, SamplingRequest
from grpo.strict_json import encode

MAX_MESSAGES = 2000
LABELS = ("category", "domain")
"""Labels of a conversation that `metadata` may have, for the scenario that it becomes; other keys have no effect."""
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
    """Body of `POST /v1/chat/completions`, and two fields of our own: `conversation_id` and `strategy`."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: Annotated[list[ToolPart], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    """False for one call in a reply at most."""
    response_format: ResponseFormat | None = None
    metadata: Metadata | None = None
    """`conversation_id` and labels of the conversation; other keys have no effect."""
    store: bool = True
    """False for turns that are logged without consent, so that nothing is trained on them."""
    conversation_id: ConversationId | None = None
    strategy: StrategyName | None = None
    audio: Annotated[None, refused("this model writes text; leave audio out")] = None
    function_call: Annotated[None, refused("send tool_choice instead", neutral=("none", "auto"))] = None
    functions: Annotated[None, refused("send the functions as tools")] = None
    modalities: Annotated[
        None, refused("this model writes text; send ['text'], or leave modalities out", neutral=(["text"],))
    ] = None
    moderation: Annotated[None, refused("this server does not moderate; leave moderation out")] = None
    reasoning_effort: Annotated[None, refused("the effort of this model's reasoning cannot be set; leave it out")] = (
        None
    )
    verbosity: Annotated[
        None, refused("the length of replies cannot be set so; send max_completion_tokens", neutral=("medium",))
    ] = None
    web_search_options: Annotated[None, refused("this server does not search the web; offer a tool that does")] = None
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
        return value if value != {} else {"search_context_size": "medium"}  # an empty object asks for a search too

    @model_validator(mode="after")
    def _are_consistent(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise Fault("top_logprobs", "top_logprobs is read with logprobs alone")
        self._characters = self._count_characters()
        names = [tool.function.name for tool in self.tools or ()]
        if len({*names}) != len(names):
            raise Fault("tools", "two tools have one name")
        return self

    def _count_characters(self) -> int:
        functions = [tool.function for tool in self.tools or ()]
        return sum(message.characters for message in self.messages) + sum(
            len(function.name) + len(function.description) + len(encode(function.parameters)) for function in functions
        )

    @property
    def characters(self) -> int:
        """Characters of all texts that the prompt may have: messages, names, arguments, tools, and white space."""
        return self._characters

    @property
    def conversation(self) -> str | None:
        """Id of the conversation that this request continues, if it is given."""
        return self.conversation_id or (self.metadata or {}).get("conversation_id")

    def continues(self, response_id: str | None, instructions: str | None) -> None:
        """Go on from the turn of a response, whose conversation began with these instructions."""
        self._previous = None if response_id is None else turn_of(response_id)
        self._instructions = instructions

    @property
    def previous_turn(self) -> str | None:
        """Id of the turn that this request continues, if it is given."""
        return self._previous

    @property
    def instructions(self) -> str | None:
        """System message that the conversation of the previous turn must have begun with; None for any."""
        return self._instructions

    @property
    def call_ids(self) -> frozenset[str]:
        """Ids of the calls in its messages."""
        return frozenset(call.id for message in self.messages for call in message.tool_calls or ())

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the conversation."""
        return {name: value for name, value in (self.metadata or {}).items() if name in LABELS and value is not None}

    @property
    def max_reply_tokens(self) -> int | None:
        """Tokens of a reply at most."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def calls_nothing(self) -> bool:
        """True for `tool_choice` none: a call is content."""
        return self.tool_choice == "none"

    @property
    def must_call(self) -> bool:
        """True where the reply has to be a call."""
        choice = self.tool_choice
        if isinstance(choice, AllowedToolsChoice):
            return choice.allowed_tools.mode == "required"
        return choice == "required" or isinstance(choice, NamedTool)

    @property
    def allowed_names(self) -> tuple[str, ...] | None:
        """Names of the tools that may be called; None for all of them."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return (choice.function.name,)
        if isinstance(choice, AllowedToolsChoice):
            return tuple(dict.fromkeys(tool.function.name for tool in choice.allowed_tools.tools))
        return None

    @property
    def has_format(self) -> bool:
        """True where a reply without calls has to be JSON."""
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def strict_names(self) -> frozenset[str]:
        """Names of the tools whose arguments have to be valid by their schemas."""
        return frozenset(tool.function.name for tool in self.tools or () if tool.function.strict)

    def to_tools(self) -> tuple[Tool, ...]:
        """Tools that the client runs."""
        return tuple(tool.to_tool() for tool in self.tools or ())

    def to_messages(self, open_calls: Sequence[str] = ()) -> tuple[Message, ...]:
        """Messages as the policy was trained on them; see `grpo.serving.chat_messages.to_messages`."""
        return to_messages(self.messages, open_calls)
