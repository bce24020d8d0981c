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
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING
from uuid import UUID

from fastapi import WebSocket

from grpo.errors import GRPOError
from grpo.serving.access.callers import Caller
from grpo.serving.event_hub import EventHub
from grpo.serving.protocol.api_errors import APIError, invalid_request
from grpo.serving.protocol.chat_response import json_text
from grpo.serving.routes.frames import WaitingFrames, answer_frames, error_text, parse_frame
from grpo.storage.error_lines import one_line

if TYPE_CHECKING:
    from grpo.serving.requests.service import Service
    from grpo.serving.routes.operations import Job, Orchestrator

logger = logging.getLogger(__name__)


async def serve_event_socket(socket: WebSocket, service: Service, check_refused: Callable[[Caller], None]) -> None:
    """Send events until the client goes away. A `{"type": "ping"}` is answered with `{"type": "pong"}`."""
    await socket.accept()
    models = [version.served.version for version in service.versions.loaded]
    with service.hub.subscribe() as subscription:

        async def push() -> None:
            await socket.send_text(json_text({"type": "connected", "data": {"models": models, **_status(service)}}))
            async for event in subscription.events():
                socket.state.authorize()
                await socket.send_text(json_text(event))

        await answer_frames(socket, _answer, service.waiting_frames, check_refused, push=push)


async def watch_jobs(orchestrator: Orchestrator, hub: EventHub, *, every_s: float) -> None:
    """Publish changes of training runs while there are subscribers, until cancelled. After an error, try again."""
    known: dict[UUID, Job] | None = None
    while True:
        if hub.subscribers:
            try:
                jobs = {job.id: job for job in await orchestrator.recent()}
            except (GRPOError, APIError) as error:
                logger.debug("the training runs cannot be listed: %s", error)
            except Exception as error:
                logger.warning("the training runs cannot be listed: %s", one_line(error))
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


async def _answer(frame: str | None, caller: Caller, waiting: WaitingFrames) -> AsyncGenerator[str]:
    try:
        message = parse_frame(frame)
        if message.get("type") != "ping":
            raise invalid_request('the frame is not {"type": "ping"}', param="type")
    except APIError as error:
        waiting.end_first(error.status)
        yield error_text(error)
        return
    waiting.end_first()
    yield json_text({**message, "type": "pong"})


def _status(service: Service) -> dict[str, str]:
    return {"status": "draining" if service.draining else "ready" if service.ready else "loading"}
