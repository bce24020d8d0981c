"""Bodies of requests, from JSON to the request.

JSON is bounded before it is parsed. Long bodies are parsed by `Preparation`, so that they do not block the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from grpo.policy.servers.protocol import TurnRequest
from grpo.serving.access.preparation import AT_ONCE, Preparation
from grpo.serving.protocol.api_errors import APIError, invalid_request, validation_error
from grpo.serving.protocol.chat_request import ChatRequest
from grpo.serving.protocol.completion_request import CompletionRequest, only_prompt
from grpo.serving.protocol.json_bounds import DEPTH, FAULTS, SMALL_VALUES, VALUES, values_and_depth
from grpo.serving.protocol.responses_request import ResponsesRequest

RequestT = TypeVar("RequestT", ChatRequest, CompletionRequest, ResponsesRequest, TurnRequest)
SmallT = TypeVar("SmallT", bound=BaseModel)
_OTHER_VALUES = 10_000
"""JSON values that a completion request may have in addition to its token ids."""
_PROMPTS: Mapping[type[BaseModel], str] = {CompletionRequest: "prompt", TurnRequest: "token_ids"}
"""Field with the token ids of a prompt, for the requests that have one."""


async def read_request(
    kind: type[RequestT],
    content: bytes,
    *,
    preparation: Preparation,
    key: str,
    most_ids: int,
    defaults: Mapping[str, Any] | None = None,
) -> RequestT:
    """Parse and validate a body of the caller `key`. Raises `APIError` 400.

    `most_ids` is the size of the largest context. A longer list of token ids is refused before it is validated, and
    before it is parsed if it is longer by `_OTHER_VALUES`. `defaults` are values for fields that the body leaves out.
    """
    read = partial(_read, kind, content, most_ids, defaults or {})
    if len(content) <= AT_ONCE:
        return read()
    return await preparation.run(key, len(content), read)


async def read_small_request(kind: type[SmallT], request: Request, *, preparation: Preparation) -> SmallT:
    """Parse and validate the body of a request that generates nothing. Raises `APIError` 400.

    FastAPI would parse it on the event loop, and would describe all its faults instead of the first one.
    """
    content = await request.body()

    def read() -> SmallT:
        return validated(kind, parse_object(content, values=SMALL_VALUES))

    if len(content) <= AT_ONCE:
        return read()
    return await preparation.run(request.state.caller.key_hash, len(content), read)


def _read(kind: type[RequestT], content: bytes, most_ids: int, defaults: Mapping[str, Any]) -> RequestT:
    field = _PROMPTS.get(kind)
    body = parse_object(content) if field is None else _parse_completion(content, most_ids, field)
    prompt = None if field is None else only_prompt(body.get(field))
    if isinstance(prompt, list) and len(prompt) > most_ids:
        message = f"the prompt has {len(prompt)} tokens, but the context has {most_ids}"
        raise invalid_request(message, param=field, code="context_length_exceeded")
    return validated(kind, {**defaults, **body})


def validated(kind: type[SmallT], body: dict[str, Any]) -> SmallT:
    """Validate a parsed body. Raises `APIError` 400 with the path of its first fault."""
    try:
        return kind.model_validate(body)
    except ValidationError as invalid:
        raise _named(invalid) from invalid


def _named(invalid: ValidationError) -> APIError:
    """Error for the first fault, with the path of its parameter. If there are too many faults, none is described."""
    if (count := invalid.error_count()) > FAULTS:
        return invalid_request(f"the body has {count} faults, too many to describe one")
    fault = invalid.errors(include_url=False, include_input=False)[0]
    return validation_error([{**fault, "loc": ("body", *fault["loc"])}])


def _parse_completion(content: bytes, most_ids: int, field: str) -> dict[str, Any]:
    """Parse the body of a completion. Most of its values are token ids, so the context bounds their number."""
    try:
        return parse_object(content, values=most_ids + _OTHER_VALUES)
    except TooManyValues as error:
        message = f"{error.message}, but the context has {most_ids} tokens"
        raise invalid_request(message, param=field, code="context_length_exceeded") from error


class TooManyValues(APIError):
    """400 for JSON with more values than any request has."""


def parse_object(content: bytes, *, values: int = VALUES) -> dict[str, Any]:
    """Parse a JSON object. Raises `APIError` for another value, or if it is too deep or has too many values."""
    count, depth = values_and_depth(content)
    if depth > DEPTH:
        raise invalid_request(f"the body has more than {DEPTH} brackets within each other", code="invalid_json")
    if count > values:
        raise TooManyValues(400, f"the body has {count} values. A request has {values} at most", code="invalid_value")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise invalid_request("the body is not valid JSON", code="invalid_json") from error
    if not isinstance(body, dict):
        raise invalid_request("the body is not a JSON object", code="invalid_type")
    return body
