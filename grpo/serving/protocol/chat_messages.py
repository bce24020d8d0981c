"""Messages of a chat request, and their conversion to the form that the policy was trained on.

    system S1, developer S2, user U     →  system "S1\n\nS2", user U          as readers of logs do
    assistant with two calls, 2 results →  assistant, tool "[R1, R2]"         in the order of the calls

Clients send replies of this server back whole. So `reasoning_content` and the fields that clients add when they dump a
reply (`annotations`, `parsed`, `index` of a call) are accepted without effect. `refusal` stands for missing content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from grpo.messages import Message, ToolCall, results_message
from grpo.serving.protocol.api_errors import invalid_request
from grpo.serving.protocol.json_bounds import VALUES, values_and_depth
from grpo.serving.protocol.request_parts import MAX_PARTS, NAME_CHARACTERS, Content, Ignored, Part, refused, words_of
from grpo.strict_json import NotStrictJSON, decode

_COUNTED = 16
"""If a JSON text may have more values than this, judging by commas and brackets, they are counted exactly."""
_SYSTEM = ("system", "developer")
_UNANSWERED = "the last calls do not have all of their results"


class FunctionCall(Part):
    """Name of a call, and its arguments as JSON text."""

    name: str = Field(min_length=1, max_length=200)
    arguments: str = ""
    parsed_arguments: Ignored


class CallPart(Part):
    """Tool call of an assistant message."""

    id: str = Field(max_length=NAME_CHARACTERS)
    type: Literal["function"] = "function"
    function: FunctionCall
    extra_content: Ignored
    index: Ignored

    def to_call(self, place: str) -> ToolCall:
        """Parse the arguments. Raises `APIError` unless they are a JSON object."""
        text = self.function.arguments or "{}"
        try:
            arguments = decode(text)
        except NotStrictJSON as error:
            raise invalid_request(f"{place} cannot be read as JSON: {error}: {text[:80]!r}", param=place) from error
        if not isinstance(arguments, dict):
            raise invalid_request(f"{place} is not a JSON object: {text[:80]!r}", param=place)
        return ToolCall(name=self.function.name, arguments=arguments)


class ChatMessage(Part):
    """Message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    refusal: str | None = None
    """Text of a model's refusal. The server reads it as the content if the message has no content."""
    tool_calls: Annotated[list[CallPart], Field(fail_fast=True, max_length=MAX_PARTS)] | None = None
    tool_call_id: str | None = Field(default=None, max_length=NAME_CHARACTERS)
    audio: Annotated[None, refused("sound is not read. Send the words as content")] = None
    function_call: Annotated[None, refused("send the call in tool_calls, and its result with the role tool")] = None
    name: str | None = Field(default=None, max_length=NAME_CHARACTERS)
    """Name of the speaker. It has no effect, because chat templates do not print it."""
    annotations: Ignored
    cache_control: Ignored
    parsed: Ignored
    provider_specific_fields: Ignored
    reasoning: Ignored
    reasoning_content: Ignored
    reasoning_details: Ignored
    thinking_blocks: Ignored

    @property
    def text(self) -> str:
        """Content as one text."""
        return words_of(self.content) or self.refusal or ""

    @property
    def characters(self) -> int:
        """Number of characters in its text, calls and ids."""
        calls = self.tool_calls or ()
        named = sum(len(call.id) + len(call.function.name) + len(call.function.arguments) for call in calls)
        return len(self.text) + named + len(self.tool_call_id or "")


def to_messages(parts: Sequence[ChatMessage], open_calls: Sequence[str] = ()) -> tuple[Message, ...]:
    """Messages as the policy was trained on them. `open_calls` are the ids of the calls before the first message.

    Results of several calls become one message with a list of the results, in the order of the calls. System messages
    at the front become one. Raises `APIError` if a message is of the wrong kind, or a result is not of an open call.
    """
    reader, front = _read(parts, open_calls)
    if front == len(parts):
        raise invalid_request("there is no user message. Add a message with role user", param="messages")
    if reader.calls:
        raise invalid_request(_UNANSWERED, param="messages")
    if reader.messages[-1].role == "assistant":
        message = (
            "the last message is the assistant's, and this server does not continue a reply that the request begins "
            "(prefill). End the messages with one of the user or the system, or with the result of a call"
        )
        raise invalid_request(message, param="messages")
    return tuple(reader.messages)


def to_logged_messages(parts: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Messages of a whole conversation, which may end with any message. Raises like `to_messages`.

    It is refused as well if it has no reply, or ends with only a part of the results of its last calls.
    """
    reader, _ = _read(parts, ())
    if all(message.role != "assistant" for message in reader.messages):
        raise invalid_request("the conversation has no reply of the assistant", param="messages")
    if reader.has_some_results:
        raise invalid_request(_UNANSWERED, param="messages")
    return tuple(reader.messages)


def _read(parts: Sequence[ChatMessage], open_calls: Sequence[str]) -> tuple[_Reader, int]:
    """Reader that has read the messages, and the number of system messages at the front."""
    front = next((index for index, part in enumerate(parts) if part.role not in _SYSTEM), len(parts))
    reader = _Reader(open_calls if parts[0].role == "tool" else ())
    for index, part in enumerate(parts[:front]):
        _check_text(part, f"messages[{index}]")
    if front:
        reader.messages.append(Message(role="system", content="\n\n".join(part.text for part in parts[:front])))
    for index, part in enumerate(parts[front:], front):
        reader.read(part, f"messages[{index}]")
    return reader, front


def _check_text(part: ChatMessage, place: str) -> None:
    """Raise `APIError` if a message that is not the assistant's has calls, or has no text."""
    if part.role != "assistant" and (part.tool_calls or part.content is None):
        raise invalid_request(f"{place} is a {part.role} message without text", param=f"{place}.content")


class _Reader:
    """Messages so far, and the calls that have no result yet."""

    def __init__(self, open_calls: Sequence[str]) -> None:
        self.messages: list[Message] = []
        self.calls = list(open_calls)
        self._results: dict[str, str] = {}
        self._waiting = {*open_calls}
        self._values = _Values()

    @property
    def has_some_results(self) -> bool:
        """True if some of the pending calls have their result, and others do not."""
        return bool(self._results)

    def read(self, part: ChatMessage, place: str) -> None:
        """Add a message. Results are collected until all calls have one, and then become one message."""
        if part.role == "tool":
            self._read_result(part, place)
            return
        if self.calls:
            raise invalid_request(f"{place} follows calls without their results", param=place)
        _check_text(part, place)
        parts = part.tool_calls or []
        self.calls = [call.id for call in parts]
        self._waiting = {*self.calls}
        for call in parts:
            self._values.add(call.function.arguments, place)
        parsed = tuple(call.to_call(f"{place}.tool_calls[{k}].function.arguments") for k, call in enumerate(parts))
        role: Literal["system", "user", "assistant"] = "system" if part.role == "developer" else part.role
        self.messages.append(Message(role=role, content=part.text, tool_calls=parsed))

    def _read_result(self, part: ChatMessage, place: str) -> None:
        if part.tool_call_id not in self._waiting:
            raise invalid_request(
                f"{place}.tool_call_id {part.tool_call_id!r} is not an open call of the message before",
                param=f"{place}.tool_call_id",
            )
        self._waiting.remove(part.tool_call_id)
        self._results[part.tool_call_id] = part.text
        if len(self.calls) > 1:
            self._values.add(part.text, place)
        if len(self._results) == len(self.calls):
            self.messages.append(results_message([self._results[call] for call in self.calls]))
            self.calls, self._results = [], {}


class _Values:
    """Number of values in all JSON texts of a request. They are bounded together, because each text is parsed."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, text: str, place: str) -> None:
        """Count a text before it is parsed. Raises `APIError` if the texts have more values than a request may have."""
        count = 1 + sum(map(text.count, ",[{"))
        if count > _COUNTED:  # count exactly, because commas inside strings are not values
            count = values_and_depth(text.encode(errors="surrogatepass"))[0]
        self._count += count
        if self._count > VALUES:
            message = f"{place}: arguments and results have more than {VALUES} values in all. Send fewer"
            raise invalid_request(message, param=place)
