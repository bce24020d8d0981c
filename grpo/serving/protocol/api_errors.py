"""Errors of the HTTP API in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

429 is a limit of the caller, 503 a limit of this server. Both carry Retry-After in whole seconds and retry-after-ms,
which OpenAI's clients obey up to two minutes. If a retry cannot succeed within this time, `x-should-retry` is false.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from grpo.serving.protocol.request_parts import TAG, Fault

INVALID_REQUEST, SERVER_ERROR = "invalid_request_error", "server_error"
_LONGEST_WAIT_S = 120.0
"""OpenAI's clients do not wait longer."""
_SERVED = ("/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/models", "/v1/feedback", "/v1/log")
"""Paths of OpenAI's API, of feedback and of the log, which an error lists if no route has the caller's path."""
_NAME_SHOWN = 64
"""Most characters of each name in the path of a parameter."""
_CODES = {"extra_forbidden": "unknown_parameter", "missing": "missing_required_parameter"}


class APIError(Exception):
    """Error that the client receives unchanged."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type, self.code, self.param = status, message, type, code, param
        self.retry_after_s = retry_after_s
        self.headers = dict(headers or {})
        """Further headers of the response."""


def is_api_error(error: BaseException) -> bool:
    """True for an error that goes to the client, so `user_code(passes=is_api_error)` converts only other errors."""
    return isinstance(error, APIError)


def invalid_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> APIError:
    """400 for a request that cannot be served, with the name of the parameter if there is one."""
    return APIError(400, message, param=param, code=code)


def overloaded(message: str, *, retry_after_s: float) -> APIError:
    """503 for a limit of this server."""
    return APIError(503, message, type="overloaded_error", code="overloaded", retry_after_s=retry_after_s)


def error_body(error: APIError) -> dict[str, dict[str, str | None]]:
    """Body of the response, or last event of a stream that fails."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def error_headers(error: APIError) -> dict[str, str]:
    """Headers of the response, which say if and when the client should try again."""
    headers = dict(error.headers)
    wait_s = error.retry_after_s
    if wait_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(wait_s)))
        headers["retry-after-ms"] = str(max(1, math.ceil(wait_s * 1000)))
    if error.status in (429, 503):
        headers["x-should-retry"] = "true" if wait_s is not None and wait_s <= _LONGEST_WAIT_S else "false"
    return headers


def error_response(error: APIError) -> Response:
    """Response of an error. It is ASCII, because a message may quote a surrogate, which UTF-8 cannot hold."""
    body = json.dumps(error_body(error)).encode("ascii")
    return Response(body, status_code=error.status, headers=error_headers(error), media_type="application/json")


def validation_error(errors: Sequence[Mapping[str, Any]]) -> APIError:
    """400 for the first fault that pydantic reports in a request, with the path of its parameter.

    `{"loc": ("body", "messages", 0, "role"), "msg": "Field required", "type": "missing"}` → param `messages[0].role`

    Tags of unions are not part of the path. A `Fault` of an object adds the name of its field.
    """
    first = errors[0]
    kind, message = str(first["type"]), str(first["msg"]).removeprefix("Value error, ")
    if kind == "json_invalid":
        return invalid_request("the body is not valid JSON", code="invalid_json")
    fault = (first.get("ctx") or {}).get("error")
    path = [*first["loc"][1:], *([fault.param] if isinstance(fault, Fault) else [])]
    param = "".join(_step(part) for part in path if not str(part).startswith(TAG)).removeprefix(".") or None
    code = _CODES.get(kind) or ("invalid_type" if kind.endswith("_type") else "invalid_value")
    if kind == "extra_forbidden":
        message = "unknown parameter"
    return invalid_request(message if param is None else f"{param}: {message}", param=param, code=code)


def _step(part: int | str) -> str:
    """A part of a parameter's path: the place in a list, or the name of a field."""
    return f"[{part}]" if isinstance(part, int) else f".{part[:_NAME_SHOWN]}"


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error in OpenAI's shape: `APIError`, invalid requests, unknown paths or methods, and failures."""
    app.add_exception_handler(APIError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _failure)


def _ours(_: Request, error: Exception) -> Response:
    assert isinstance(error, APIError)
    return error_response(error)


def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(validation_error(error.errors()))


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    place = f"{request.method} {request.url.path}"
    if error.status_code == 404 and error.detail == HTTPStatus.NOT_FOUND.phrase:
        return error_response(unknown_address(request.url.path, headers=error.headers))
    if error.status_code == 405:
        return error_response(
            APIError(405, f"method not allowed: {place}", code="method_not_allowed", headers=error.headers)
        )
    kind = SERVER_ERROR if error.status_code >= 500 else INVALID_REQUEST
    return error_response(APIError(error.status_code, str(error.detail), type=kind, headers=error.headers))


def _failure(_: Request, __: Exception) -> Response:
    return error_response(APIError(500, "the server failed on this request. Its log has the cause", type=SERVER_ERROR))


def unknown_address(path: str, *, headers: Mapping[str, str] | None = None) -> APIError:
    """404 for a path that no route has, with a list of paths that exist."""
    forgotten = f". The base URL of a client ends in /v1: /v1{path}" if f"/v1{path}" in _SERVED else ""
    message = f"there is no {path[:200]}{forgotten}. This server has {', '.join(_SERVED)}"
    return APIError(404, message, code="unknown_url", headers=headers)


def other_protocol(path: str, *, is_socket: bool) -> APIError:
    """Error for a WebSocket at the path of an HTTP route, and 426 for an HTTP request at the path of a WebSocket."""
    if is_socket:
        return APIError(404, f"{path[:200]} answers HTTP requests, and has no WebSocket", code="unknown_url")
    message = f"{path[:200]} is a WebSocket. Open it with ws:// or wss://, or ask over HTTP at another address"
    return APIError(426, message, code="websocket_needed", headers={"upgrade": "websocket"})


def erased_error() -> APIError:
    """410 for a turn whose user or conversation was erased while it ran."""
    return APIError(410, "the conversation was erased while this turn ran", code="conversation_erased")
