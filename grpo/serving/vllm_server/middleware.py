"""Rollouts of trainings on `vllm serve`, as its option `--middleware`.

    vllm serve MODEL --middleware grpo.serving.vllm_server.middleware.RolloutRoutes …

Requests below /v1/rollout are answered here, by the protocol of `grpo.policy.servers.protocol`, for keys of the scope
`rollout` in the folder GRPO_HOME. All other requests go to vLLM. Its own routes for new weights are not used, and are
off by default, because they are outside of the paths for which vLLM asks for its key.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from grpo.config.serving import RolloutServingSettings
from grpo.policy.servers.protocol import FILES, PREFIX, TURNS, TurnRequest
from grpo.serving.access.guard import Authenticator, Guard
from grpo.serving.access.keys import KeyStore
from grpo.serving.access.preparation import Preparation
from grpo.serving.protocol.api_errors import install_error_handlers
from grpo.serving.requests.request_body import read_request
from grpo.serving.routes.rollout_weights import add_weight_routes
from grpo.serving.routes.streams import unless_disconnected
from grpo.serving.vllm_server.rollouts import VLLMRollouts
from grpo.storage.home import home

SETTINGS = "rollouts"
"""Entry of vLLM's `--additional-config` with `RolloutServingSettings`."""


class RolloutRoutes:
    """Application in front of the one of vLLM."""

    def __init__(self, app: ASGIApp) -> None:
        """Read the keys. Raises `ConfigError` if their file is damaged, or if others can read it."""
        self._vllm = app
        self._authenticate = Authenticator(KeyStore(home() / "keys.json"))
        self._routes: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. Uploaded files are removed when the server ends."""
        if scope["type"] == "lifespan":
            state = scope["app"].state
            settings = RolloutServingSettings.model_validate(
                state.engine_client.vllm_config.additional_config.get(SETTINGS, {})
            )
            rollouts = VLLMRollouts(
                state.engine_client,
                weights_bytes=settings.weights_bytes,
                api_servers=state.args.api_server_count or 1,
            )
            self._routes = _guarded(rollouts, self._authenticate)
            try:
                await self._vllm(scope, receive, send)
            finally:
                rollouts.files.close()
        elif self._routes is not None and scope["path"].startswith(f"{PREFIX}/"):
            await self._routes(scope, receive, send)
        else:
            await self._vllm(scope, receive, send)


def _guarded(rollouts: VLLMRollouts, authenticate: Authenticator) -> Guard:
    app, preparation = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False), Preparation()
    install_error_handlers(app)
    add_weight_routes(app, rollouts, preparation)

    @app.post(TURNS)
    async def turn(request: Request) -> Response:
        """Generate a turn with the loaded version."""
        body = await read_request(
            TurnRequest,
            await request.body(),
            preparation=preparation,
            key=request.state.caller.key_hash,
            most_ids=rollouts.max_context,
        )
        reply = await unless_disconnected(request, rollouts.turn(body))
        return Response(status_code=499) if reply is None else JSONResponse(reply.model_dump(mode="json"))

    return Guard(app, authenticate, scopes={PREFIX: "rollout"}, large={TURNS}, streamed=FILES, preparation=preparation)
