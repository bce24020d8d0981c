"""Calls that MLflow's server answers: records of runs, the registry, files, traces, and the pages.

MLflow's application has more: an assistant that runs shell commands, a gateway that keeps keys of providers and asks
any address, jobs, scorers with code of their own, webhooks. All of it runs in the process of the server, as the user
who owns the signing key. Therefore MLflow's login would be enough to do whatever that user may do, and this project
does not need these calls. If a call is not listed here, it is answered with 404, also if a later MLflow adds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from grpo_local.origins import POLICY_VIOLATION

_CALLS = {
    "2.0/mlflow/experiments": {
        "GET": "/get /get-by-name /search",
        "POST": "/create /search /update /delete /restore /set-experiment-tag /delete-experiment-tag /search-datasets",
    },
    "2.0/mlflow/runs": {
        "GET": "/get",
        "POST": "/create /update /delete /restore /search /set-tag /delete-tag /log-metric /log-parameter /log-batch "
        "/log-model /log-inputs /outputs",
    },
    "2.0/mlflow/metrics": {"GET": "/get-history /get-history-bulk /get-history-bulk-interval"},
    "2.0/mlflow/logged-models": {
        "GET": "/{} /{}/artifacts/directories /{}/artifacts/files",
        "POST": " /search /{}/params",
        "PATCH": "/{} /{}/tags",
        "DELETE": "/{} /{}/tags/{}",
    },
    "2.0/mlflow/registered-models": {
        "GET": "/get /search /get-latest-versions /alias",
        "POST": "/create /rename /get-latest-versions /set-tag /alias",
        "PATCH": "/update",
        "DELETE": "/delete /delete-tag /alias",
    },
    "2.0/mlflow/model-versions": {
        "GET": "/get /search /get-download-uri",
        "POST": "/create /transition-stage /set-tag",
        "PATCH": "/update",
        "DELETE": "/delete /delete-tag",
    },
    "2.0/mlflow/artifacts": {"GET": "/list", "POST": "/presigned-upload-url /presigned-download-url"},
    "2.0/mlflow-artifacts": {
        "GET": "/artifacts /artifacts/{path} /presigned/{path}",
        "PUT": "/artifacts/{path}",
        "POST": "/mpu/create/{path} /mpu/complete/{path} /mpu/abort/{path}",
        "DELETE": "/artifacts/{path}",
    },
    "2.0/mlflow/traces": {"GET": " /{}/info", "POST": "/delete-traces", "PATCH": "/{}/tags", "DELETE": "/{}/tags"},
    "3.0/mlflow/traces": {
        "GET": "/get /batchGet /{} /{}/assessments/{}",
        "POST": " /search /batchGetInfos /delete-traces /metrics /calculate-filter-correlation /{}/assessments",
        "PATCH": "/{}/tags /{}/assessments/{}",
        "DELETE": "/{}/tags /{}/assessments/{}",
    },
    "2.0/mlflow": {"GET": "/get-trace-artifact"},
    "3.0/mlflow": {
        "GET": "/get-trace-artifact /server-info /ui-telemetry /datasets/search",
        "POST": "/datasets/search",
    },
}
"""Ends of the paths below `/api/` for clients and below `/ajax-api/` for the pages, by method.

`{}` stands for one part of a path, `{path}` for one or more. `/ui-telemetry` tells the pages that usage data are off.
"""
_OTHERS = {
    "GET": "/ /health /version /get-artifact /model-versions/get-artifact /static-files/{path}",
    "POST": "/graphql /v1/traces",
}
"""`/graphql` reads runs for the pages and changes nothing. `/v1/traces` takes the spans of the mirror."""
_GATEWAY = "/ajax-api/2.0/mlflow/gateway-proxy"
"""Path that the page of a run asks for endpoints. If it does not get a list, it shows an error to its user."""
_PART = r"(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f\\]+"
"""One part of a path, which is not `.` or `..`."""


class CallMiddleware:
    """ASGI middleware that answers 404 to calls that are not listed, with a sentence that says so.

    The path is compared as MLflow's router gets it, decoded once. WebSockets are refused, because MLflow has none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or refuse it."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and is_listed(scope["method"], scope["path"])):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(code=POLICY_VIOLATION)(scope, receive, send)
        elif scope["method"] == "GET" and scope["path"] == _GATEWAY:
            await JSONResponse({"endpoints": []})(scope, receive, send)
        else:
            message = (
                f"{scope['method']} {scope['path'][:200]} is switched off on this server, which answers calls of "
                "MLflow's tracking, registry, artifacts and traces only"
            )
            refusal = {"error_code": "ENDPOINT_NOT_FOUND", "message": message}  # in the form of MLflow's own errors
            await JSONResponse(refusal, status_code=404)(scope, receive, send)


def is_listed(method: str, path: str) -> bool:
    """True for a call that the server answers. HEAD is answered if GET is."""
    return _LISTED.fullmatch(f"{'GET' if method == 'HEAD' else method} {path}") is not None


def listed_calls() -> Iterator[tuple[str, str]]:
    """Method and path of each call in the list. Calls of the pages have `/api/` here instead of `/ajax-api/`."""
    for prefix, methods in _CALLS.items():
        yield from ((method, f"/api/{prefix}{end}") for method, ends in methods.items() for end in ends.split(" "))
    yield from ((method, path) for method, paths in _OTHERS.items() for path in paths.split(" "))


def _pattern(method: str, path: str) -> str:
    end = "/?" if method == "DELETE" else ""  # MLflow's client deletes a whole folder with a slash at its end
    named = {"{}": _PART, "{path}": f"{_PART}(?:/{_PART})*{end}", "/api/": "/(?:ajax-)?api/"}
    return f"{method} " + "".join(
        named.get(part, re.escape(part)) for part in re.split(r"(\{(?:path)?\}|^/api/)", path)
    )


_LISTED = re.compile("|".join(_pattern(method, path) for method, path in listed_calls()))
