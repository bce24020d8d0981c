"""Events of a server: versions that are loaded or retired, the end of the server, and training runs.

type                        data
connected                   {"status", "models"}                     first event of a connection
version.loaded, .retired    {"model"}
server.draining             {}
training.STATUS             {"id", "deployment", "iterations", …}    the status of a run has changed, see `Job`
training.iteration          {"id", "deployment", "iterations", …}    iterations that have ended
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from uuid import UUID

import anyio
from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect

from grpo.errors import GRPOError
from grpo.serving.event_hub import EventHub
from grpo.serving.protocol.api_errors import APIError, invalid_request
from grpo.serving.protocol.chat_response import json_text
from grpo.serving.routes.chat_socket import error_text, parse_frame
from grpo.storage.error_lines import one_line

if TYPE_CHECKING:
    from grpo.serving.requests.service import Service
    from grpo.serving.routes.operations import Job, Orchestrator

logger = logging.getLogger(__name__)


async def serve_event_socket(socket: WebSocket, service: Service) -> None:
    """Send events until the client goes away. A `{"type": "ping"}` is answered with `{"type": "pong"}`."""
    await socket.accept()
    models = [version.served.version for version in service.versions.loaded]
    with service.hub.subscribe() as subscription:
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                while (message := await socket.receive())["type"] != "websocket.disconnect":
                    try:
                        await socket.send_text(_answer(message.get("text")))
                    except WebSocketDisconnect:
                        break
                group.cancel_scope.cancel()

            try:
                await socket.send_text(json_text({"type": "connected", "data": {"models": models, **_status(service)}}))
                group.start_soon(listen)
                async for event in subscription.events():
                    await socket.send_text(json_text(event))
            except WebSocketDisconnect:
                group.cancel_scope.cancel()


async def watch_jobs(orchestrator: Orchestrator, hub: EventHub, *, every_s: float) -> None:
    """Publish changes of training runs while there are subscribers, until cancelled. After an error, try again."""
    known: dict[UUID, Job] | None = None
    while True:
        if hub.subscribers:
            try:
                jobs = {job.id: job for job in await orchestrator.recent()}
            except (GRPOError, APIError) as error:
                logger.debug("training runs are not known: %s", error)
            except Exception as error:
                logger.warning("training runs are not known: %s", one_line(error))
            else:
                for job in jobs.values():
                    publish_change(hub, None if known is None else known.get(job.id), job, is_first=known is None)
                known = jobs
        else:
            known = None
        await asyncio.sleep(every_s)


def publish_change(hub: EventHub, before: Job | None, job: Job, *, is_first: bool = False) -> None:
    """Publish what has changed in a training run. When runs are first listed, only those in progress are published."""
    if before is not None and job.iterations > before.iterations:
        hub.publish("training.iteration", **job.model_dump(mode="json"))
    if (before is None and not (is_first and job.ended)) or (before is not None and job.status != before.status):
        hub.publish(f"training.{job.status}", **job.model_dump(mode="json"))


def _answer(frame: str | None) -> str:
    try:
        message = parse_frame(frame)
        if message.get("type") != "ping":
            raise invalid_request('the frame is not {"type": "ping"}', param="type", code="invalid_value")
    except APIError as error:
        return error_text(error)
    return json_text({**message, "type": "pong"})


def _status(service: Service) -> dict[str, str]:
    return {"status": "draining" if service.draining else "ready" if service.ready else "loading"}
