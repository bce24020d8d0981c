"""Chat over a WebSocket: a request is one text frame, and its reply is an event stream with one object per frame.

    client   {"model": …, "messages": […]}                       {"model": …, "conversation_id": …, "messages": […]}
    server      chunk  chunk  …  [DONE]                              chunk  …  [DONE]

A reply ends with `[DONE]` or with `{"error": …, "status": …}`, and the connection stays open. If requests arrive before
the reply has ended, a few of them wait. If the client goes away, its turn is aborted. If no request arrives for ten
minutes, the connection is closed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from fastapi import WebSocket

from grpo.errors import GRPOError
from grpo.serving.access.callers import Caller
from grpo.serving.access.limits import Limiter
from grpo.serving.access.preparation import AT_ONCE
from grpo.serving.protocol.api_errors import APIError, invalid_request
from grpo.serving.protocol.chat_request import ChatRequest
from grpo.serving.protocol.chat_response import json_text
from grpo.serving.protocol.json_bounds import encodable
from grpo.serving.requests.chat_handler import ChatHandler
from grpo.serving.requests.request_body import read_request
from grpo.serving.requests.service import Service
from grpo.serving.routes.frames import WaitingFrames, answer_frames, error_text
from grpo.serving.routes.streams import admit, chunks

logger = logging.getLogger(__name__)


async def serve_chat_socket(
    socket: WebSocket, service: Service, limiter: Limiter, check_refused: Callable[[Caller], None]
) -> None:
    """Answer the requests of one connection in order, until the client closes it. See `answer_frames`."""
    await socket.accept()
    reply, idle_s = partial(_reply, service=service, limiter=limiter), service.settings.socket_idle_s
    await answer_frames(socket, reply, service.waiting_frames, check_refused, idle_s=idle_s)


async def _reply(
    frame: str | None, caller: Caller, waiting: WaitingFrames, *, service: Service, limiter: Limiter
) -> AsyncGenerator[str]:
    """Frames of the reply to one request."""

    async def read_and_begin() -> ChatHandler:
        nonlocal frame
        request = await _read(frame, caller, service)
        frame = None
        return await service.begin(request, caller)

    try:
        handler = await admit(read_and_begin, service, limiter, caller)
    except APIError as error:
        waiting.end_first(error.status)
        yield error_text(error)
        return
    except GRPOError as error:
        waiting.end_first(500)
        logger.error("a request failed: %s", error)
        yield error_text(APIError(500, "the server failed on this request. Its log has the cause", type="server_error"))
        return
    waiting.end_first()
    service.streaming += 1
    try:
        async with aclosing(chunks(handler, with_usage=handler.request.with_usage)) as stream:
            async for ready in stream:
                for chunk in ready:
                    yield error_text(chunk) if isinstance(chunk, APIError) else json_text(chunk)
    finally:
        service.streaming -= 1
        handler.admission.release()


async def _read(frame: str | None, caller: Caller, service: Service) -> ChatRequest:
    """Read the request of a frame, which is None if it is binary. Raises `APIError` as the HTTP route does."""
    if frame is None:
        raise invalid_request("the frame is binary. Send JSON as text", code="invalid_json")
    content = frame.encode(errors="surrogatepass")
    key, preparation = caller.key_hash, service.preparation
    if len(content) <= AT_ONCE:
        is_text = encodable(content)
    else:
        is_text = await preparation.run(key, len(content), partial(encodable, content))
    if not is_text:
        raise invalid_request("the frame holds half of a surrogate pair, which UTF-8 cannot hold", code="invalid_text")
    return await read_request(
        ChatRequest,
        content,
        preparation=preparation,
        key=key,
        most_ids=service.max_context,
        defaults={"stream": True},
    )
