from __future__ import annotations

import base64
import hashlib
import re

from grpo.serving.routes.page import page_response


def test_the_policy_of_the_page_names_its_script_and_style_and_this_server_alone():
    """Both digests are those of the text in the page; nothing else is allowed, and nothing else is in it."""
    response = page_response()
    page = bytes(response.body).decode()
    directives = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    assert directives.pop("default-src") == "'none'"
    for tag in ("script", "style"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert directives.pop(f"{tag}-src") == f"'sha256-{digest}'"
    assert directives == {
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert re.findall(r'(?:src|href|action)="([^"]*)"', page) == ["data:,"]
    assert re.findall(r"https?://[^\"]+", page) == ["http://www.w3.org/2000/svg"]  # the name of a format
    assert not re.search(r"\sstyle=|\son\w+=|innerHTML|localStorage|cookie", page)
