"""Refusal of the description of Prefect's API and of the pages that show it.

Prefect answers `/openapi.json` without a login and makes the description again for each request, over a second of work
in which its server answers nothing else. The pages `/docs` and `/redoc` load programs of another host, which could then
use the login that the browser keeps for Prefect's page. Neither this project nor Prefect's page needs them.
"""

from __future__ import annotations

import re

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_DESCRIPTION = re.compile(r"/+(?:api/+)?(?:docs|redoc|openapi\.json)(?:/.*)?", re.DOTALL)


class DescriptionMiddleware:
    """ASGI middleware that answers 404 to requests for the description of the API, also with a login."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or refuse it."""
        if scope["type"] == "http" and is_description(scope["path"]):
            message = "the description of the API is switched off on this server. Prefect's documentation has it"
            await JSONResponse({"exception_message": message}, status_code=404)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def is_description(path: str) -> bool:
    """True for a path, decoded once, that Prefect answers with the description or with a page that shows it."""
    return _DESCRIPTION.fullmatch(path) is not None
