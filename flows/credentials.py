"""Addresses that may be shown."""

from __future__ import annotations

import re
import urllib.parse

HIDDEN = "***"
_LOGIN = re.compile(r"(?<=://)([^/@\s:]*):([^/@\s]+)@")
_PARAMETER = re.compile(r"((?:password|passwd|token|secret|key|signature)[\w-]*)=[^&\s]+", re.IGNORECASE)


def masked(text: str, *, known: str = "") -> str:
    """A text without the passwords of the addresses in it, and without the one of a `known` address wherever it stands.

    postgresql://grpo:s3cret@db/prefect?sslpassword=x → postgresql://grpo:***@db/prefect?sslpassword=***
    """
    password = _LOGIN.search(known)
    if password is not None:
        for form in {password[2], urllib.parse.unquote(password[2])}:
            text = text.replace(form, HIDDEN)
    return _PARAMETER.sub(rf"\1={HIDDEN}", _LOGIN.sub(rf"\1:{HIDDEN}@", text))
