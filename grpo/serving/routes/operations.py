"""Routes for operators: training runs, sizes of the server, erasure. All need the scope `admin`.

The routes ask an `Orchestrator` for training runs. `grpo_local.training_jobs` has the one that uses Prefect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Protocol, Self
from uuid import UUID

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo.errors import StorageError
from grpo.log.folder import name_digest
from grpo.log.records import Erasure
from grpo.serving.protocol.api_errors import APIError, invalid_request, overloaded
from grpo.serving.protocol.json_bounds import BoundedFields, at_most
from grpo.serving.requests.request_body import read_small_request
from grpo.serving.requests.service import Service

JobStatus = Literal["scheduled", "pending", "running", "paused", "cancelling", "completed", "failed", "crashed",
                    "cancelled"]  # fmt: skip
Number = bool | int | float
MOST_OVERRIDES = 50
_RETRY_S = 30.0


class Job(BaseModel):
    """Training run."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    id: UUID
    """Id of the flow run."""
    deployment: str
    """Deployment, e.g. `train/quickstart`. Empty if the run was started without one."""
    name: str
    status: JobStatus
    message: str = ""
    """Verdict of the gates with its reason, or the error if the run failed."""
    iterations: int = 0
    """Completed updates of the policy."""
    created: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None


class Orchestrator(Protocol):
    """Server of training runs. Raises `APIError`, with status 503 if it does not answer."""

    async def start(self, deployment: str, overrides: Mapping[str, Number]) -> Job:
        """Start a run of a deployment. `overrides` maps dotted paths of its config to new numbers."""
        ...

    async def job(self, id: UUID) -> Job:
        """Status of a run. Raises 404 if it is unknown."""
        ...

    async def recent(self) -> Sequence[Job]:
        """Runs that have not ended, and runs of the last day, including runs that commands started."""
        ...

    async def cancel(self, id: UUID) -> Job:
        """Cancel a run and return it. Raises 404 if it is unknown, 409 if it has ended."""
        ...

    async def scale(self, pool: str, limit: int) -> int:
        """Set the number of runs that a work pool executes at once. Returns the number that is then in force."""
        ...


class _Body(BoundedFields):
    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class TrainRequest(_Body):
    """Body of `POST /v1/train`.

    The request names a config that was deployed. A caller may change only its numbers and switches, because texts of a
    config name files and code.
    """

    config: str = Field(pattern=r"^[\w-]{1,100}/[\w-]{1,100}$")
    """Deployment, e.g. `train/quickstart`."""
    overrides: Annotated[dict[Annotated[str, Field(max_length=200)], Number], at_most(MOST_OVERRIDES)] = Field(
        default_factory=dict
    )
    """Numbers and switches of the config by their path, e.g. `training.iterations`."""


class PoolScale(_Body):
    """Limit of a work pool."""

    name: str = Field(pattern=r"^[\w-]{1,100}$")
    concurrency_limit: int = Field(ge=0, le=10_000)


class ScaleRequest(_Body):
    """Body of `POST /v1/scale`. A size that is absent stays as it is."""

    max_requests: int | None = Field(default=None, ge=1, le=1_000_000)
    """Turns that run or wait."""
    concurrency: int | None = Field(default=None, ge=1)
    """Turns that are generated at once, up to the number that the server was started with."""
    work_pool: PoolScale | None = None

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        if self.max_requests is None and self.concurrency is None and self.work_pool is None:
            raise ValueError("name max_requests, concurrency or work_pool")
        return self


def add_operations(app: FastAPI, service: Service, orchestrator: Orchestrator | None) -> None:
    """Add the routes. Without an orchestrator, the routes of training runs answer 503."""

    @app.post("/v1/train", status_code=202)
    async def train(request: Request) -> Job:
        """Start a training run of a deployment."""
        body = await read_small_request(TrainRequest, request, preparation=service.preparation)
        return await _present(orchestrator).start(body.config, body.overrides)

    @app.get("/v1/train")
    async def jobs() -> dict[str, Any]:
        """Training runs that have not ended, and training runs of the last day, the newest first."""
        recent = sorted(await _present(orchestrator).recent(), key=lambda job: str(job.created), reverse=True)
        return {"object": "list", "data": recent}

    @app.get("/v1/train/{id}")
    async def job(id: UUID) -> Job:
        """Status of a training run."""
        return await _present(orchestrator).job(id)

    @app.post("/v1/train/{id}/cancel")
    async def cancel(id: UUID) -> Job:
        """Cancel a training run."""
        return await _present(orchestrator).cancel(id)

    @app.post("/v1/scale")
    async def scale(request: Request) -> dict[str, Any]:
        """Change sizes of the server and of a work pool, and return the sizes in force."""
        body = await read_small_request(ScaleRequest, request, preparation=service.preparation)
        slots = service.versions.settings.concurrency
        if body.concurrency is not None and body.concurrency > slots:
            message = f"concurrency {body.concurrency}: the server was started with engine.concurrency {slots}"
            raise invalid_request(message, param="concurrency")
        pool: dict[str, Any] = {}
        if body.work_pool is not None:
            limit = await _present(orchestrator).scale(body.work_pool.name, body.work_pool.concurrency_limit)
            pool = {"work_pool": {"name": body.work_pool.name, "concurrency_limit": limit}}
        if body.max_requests is not None:
            service.settings = service.settings.model_copy(update={"max_requests": body.max_requests})
        if body.concurrency is not None:
            service.versions.scale(body.concurrency)
        return {"max_requests": service.settings.max_requests, "concurrency": service.versions.concurrency, **pool}

    @app.delete("/v1/conversations/{id}")
    async def erase_conversation(id: str) -> dict[str, Any]:
        """Erase a conversation with its copies, and end its turn in progress."""
        return await _erase(service, conversation_id=id)

    @app.delete("/v1/users/{name:path}")
    async def erase_user(name: str) -> dict[str, Any]:
        """Erase all conversations of a user, by the name that requests gave, with their copies."""
        return await _erase(service, user=name)


async def _erase(service: Service, *, user: str | None = None, conversation_id: str | None = None) -> dict[str, Any]:
    """End running turns, erase the log, and forget the conversations in memory and in the database that servers share.

    If that database does not answer, the response is 503. The log is erased by then, and the client has to send the
    same request again.
    """
    if not (user or conversation_id):
        raise APIError(404, "name a user or a conversation", code="unknown_url")
    users = frozenset([name_digest(service.log.user_hash(user))] if user else [])
    conversations = frozenset([name_digest(conversation_id)] if conversation_id else [])

    erasure = Erasure(time=service.now(), users=users, conversations=conversations)
    ended = service.forget(erasure)
    try:
        receipt = await service.log.erase(user=user, conversation_id=conversation_id, ended=ended)
    except StorageError as error:
        raise overloaded(f"not everything is erased: {error}", retry_after_s=_RETRY_S) from error
    await service.turns.forget(erasure)
    if receipt is None:
        return {"found": False, "erased": 0, "message": "nothing was found"}
    return {"found": True, "erased": receipt.records, **receipt.model_dump(mode="json")}


def _present(orchestrator: Orchestrator | None) -> Orchestrator:
    if orchestrator is None:
        raise overloaded("this server has no Prefect server that could run trainings", retry_after_s=_RETRY_S)
    return orchestrator
