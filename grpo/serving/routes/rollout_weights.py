"""Routes by which a training sends weights to a server of rollouts: files by digest, and versions of them."""

from __future__ import annotations

from typing import Protocol

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from grpo.policy.servers.protocol import FILES, WEIGHTS, WeightsReply, WeightsRequest
from grpo.serving.access.preparation import Preparation
from grpo.serving.engine.weight_files import WeightFiles
from grpo.serving.protocol.api_errors import APIError
from grpo.serving.requests.request_body import read_small_request


class LoadsWeights(Protocol):
    """A server that stores the files of a version and loads them."""

    files: WeightFiles

    async def load(self, request: WeightsRequest) -> WeightsReply:
        """Load a version from uploaded files, or name the files that are missing."""
        ...


def add_weight_routes(app: FastAPI, rollouts: LoadsWeights, preparation: Preparation) -> None:
    """Add the routes. A guard has to be in front of them."""

    @app.put(f"{FILES}/{{digest}}", status_code=201)
    async def file(digest: str, request: Request) -> Response:
        """Store a file of a model under its sha256."""
        size = request.headers.get("content-length", "")
        if not size.isdecimal():
            raise APIError(411, "send the size of the file as content-length", code="invalid_header")
        try:
            await rollouts.files.receive(digest, int(size), request.stream())
        except ClientDisconnect:
            return Response(status_code=499)
        return JSONResponse({"sha256": digest, "bytes": int(size)}, status_code=201)

    @app.post(WEIGHTS)
    async def weights(request: Request) -> WeightsReply:
        """Load a version from files, or name the files that are missing."""
        return await rollouts.load(await read_small_request(WeightsRequest, request, preparation=preparation))
