"""Chat page of the server: one file without data that asks for an API key and calls the same API as other clients."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from fastapi.responses import HTMLResponse

_FILE = Path(__file__).with_name("page.html")


@cache
def page_content() -> tuple[str, str]:
    """Page and its content security policy, which allows only its own script and style, and requests to this server."""
    text = _FILE.read_text(encoding="utf-8")
    script, style = (_digest(text, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return text, policy


def page_response() -> HTMLResponse:
    """Response with the page."""
    text, policy = page_content()
    headers = {
        "content-security-policy": policy,
        "cache-control": "no-cache",
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return HTMLResponse(text, headers=headers)


def _digest(text: str, tag: str) -> str:
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
