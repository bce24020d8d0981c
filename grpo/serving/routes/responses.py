"""Bodies and events of OpenAI's Responses API, written from the same handler that answers the chat API.

response.created, response.in_progress
response.output_item.added       message        content_part.added, output_text.delta …, .done, content_part.done
response.output_item.added       function_call  function_call_arguments.delta, .done
response.completed, or response.incomplete if a limit of tokens ended the reply, or `error` and response.failed
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any

from grpo.log.ids import turn_of
from grpo.serving.protocol.api_errors import APIError
from grpo.serving.protocol.chat_response import Choice, TokenLogprob, Usage, json_text, tool_calls
from grpo.serving.protocol.responses_request import PREFIX, ResponsesRequest, SchemaFormat, renamed
from grpo.serving.requests.chat_handler import ChatHandler
from grpo.serving.requests.reply_events import Delta, Ended
from grpo.serving.routes.streams import answerable

_ALIVE = b": keep-alive\n\n"


class ResponseWriter:
    """Response of one request, whole or as events."""

    def __init__(self, request: ResponsesRequest, handler: ChatHandler) -> None:
        self._request, self._handler = request, handler
        self._turn = turn_of(handler.completion.id)
        self._number = 0
        self._sent = ""
        self._begun = False
        self._items: list[dict[str, Any]] = []

    async def whole(self) -> dict[str, Any]:
        """Body of a response that is not streamed."""
        try:
            async with aclosing(self._handler.events()) as events:
                async for event in events:
                    if isinstance(event, Ended):
                        ended = event  # a request of this API has one choice
        except Exception as error:
            raise renamed(answerable(error)) from error
        await self._handler.admission.settle()
        return self._ended(ended)

    async def events(self) -> AsyncGenerator[bytes]:
        """Server-sent events. A comment is sent in an interval without events, to keep the connection alive."""
        yield self._event("response.created", response=self._body("in_progress"))
        yield self._event("response.in_progress", response=self._body("in_progress"))
        try:
            async with aclosing(self._handler.events()) as events:
                async for event in events:
                    if event is None:
                        yield _ALIVE
                    elif isinstance(event, Delta):
                        yield b"".join(self._delta(event.text, event.logprobs))
                    else:
                        await (
                            self._handler.admission.settle()
                        )  # before the client knows the end, as it may go on at once
                        yield b"".join(self._end(event))
        except Exception as error:
            failure = renamed(answerable(error))
            yield self._event("error", code=failure.code, message=failure.message, param=failure.param)
            yield self._event("response.failed", response=self._failed(failure))

    def _ended(self, event: Ended) -> dict[str, Any]:
        """Body of a complete response."""
        choice = event.choice
        if choice.message.content or not choice.message.tool_calls:
            self._items.append(self._message(choice.message.content, choice.logprobs, _status(choice)))
        self._items += [_call_item(call) for call in tool_calls(choice)]
        return self._body(_status(choice), event.usage)

    def _delta(self, text: str, logprobs: Iterable[TokenLogprob] | None) -> Iterable[bytes]:
        if not self._begun:
            self._begun = True
            empty = {**self._message("", None, "in_progress"), "content": []}
            yield self._event("response.output_item.added", output_index=0, item=empty)
            yield self._event("response.content_part.added", **self._place, part=_part("", None))
        self._sent += text
        tokens = [token.to_json() for token in logprobs or ()]
        yield self._event("response.output_text.delta", **self._place, delta=text, logprobs=tokens)

    def _end(self, event: Ended) -> Iterable[bytes]:
        """Events of the rest of the text, of the calls, and of the end."""
        choice, text = event.choice, event.choice.message.content
        if text or not choice.message.tool_calls:
            yield from self._delta(text[len(event.sent) :], event.rest)
            part = _part(text, choice.logprobs)
            logprobs = part["logprobs"]
            yield self._event("response.output_text.done", **self._place, text=text, logprobs=logprobs)
            yield self._event("response.content_part.done", **self._place, part=part)
            item = self._message(text, choice.logprobs, _status(choice))
            yield self._event("response.output_item.done", output_index=0, item=item)
        first = int(self._begun)
        for index, call in enumerate(tool_calls(choice), first):
            yield from self._call(index, _call_item(call))
        body = self._ended(event)
        yield self._event(f"response.{body['status']}", response=body)

    def _call(self, index: int, item: dict[str, Any]) -> Iterable[bytes]:
        place, arguments = {"output_index": index, "item_id": item["id"]}, item["arguments"]
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self._event("response.function_call_arguments.done", **place, arguments=arguments, name=item["name"])
        yield self._event("response.output_item.done", output_index=index, item=item)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self._turn}", "output_index": 0, "content_index": 0}

    def _message(self, text: str, logprobs: Iterable[TokenLogprob] | None, status: str) -> dict[str, Any]:
        content = [_part(text, logprobs)]
        return {"id": f"msg_{self._turn}", "type": "message", "role": "assistant", "status": status,
                "content": content}  # fmt: skip

    def _body(self, status: str, usage: Usage | None = None) -> dict[str, Any]:
        request, completion = self._request, self._handler.completion
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        given = request.model_dump(
            by_alias=True,
            include={"instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "previous_response_id",
                     "store", "temperature", "top_p", "user"},
        )  # fmt: skip
        tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
        choice = request.tool_choice or "auto"
        return {
            **given,
            "id": f"{PREFIX}{self._turn}",
            "object": "response",
            "created_at": completion.created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "model": completion.model,
            "output": list(self._items),
            "text": {"format": _format(request)},
            "tools": tools,
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            "conversation_id": completion.conversation_id,
        }

    def _failed(self, failure: APIError) -> dict[str, Any]:
        error = {"code": failure.code or failure.type, "message": failure.message}
        return {**self._body("failed"), "error": error}

    def _event(self, kind: str, **fields: Any) -> bytes:
        data: Mapping[str, Any] = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {kind}\ndata: {json_text(data)}\n\n".encode()


def _status(choice: Choice) -> str:
    """Status of an ended response and of its message."""
    return "incomplete" if choice.finish_reason == "length" else "completed"


def _part(text: str, logprobs: Iterable[TokenLogprob] | None) -> dict[str, Any]:
    tokens = [token.to_json() for token in logprobs or ()]
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": tokens}


def _call_item(call: Mapping[str, Any]) -> dict[str, Any]:
    """Item of a call. The client sends the call's result with its `call_id`."""
    function = call["function"]
    return {
        "id": f"fc_{call['id'].removeprefix('call_')}",
        "type": "function_call",
        "status": "completed",
        "call_id": call["id"],
        "name": function["name"],
        "arguments": function["arguments"],
    }


def _format(request: ResponsesRequest) -> dict[str, Any]:
    """Format of the text, as the request has it."""
    wanted = None if request.text is None else request.text.format
    if not isinstance(wanted, SchemaFormat):
        return {"type": "text" if wanted is None else wanted.type}
    return {"type": "json_schema", "name": wanted.name, "schema": wanted.schema_, "strict": wanted.strict}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }
