"""Addresses and the passwords in them: hidden where an address is shown, refused where it is kept."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from grpo.errors import ConfigError

HIDDEN = "***"
_LOGIN = re.compile(r"(?<=://)([^/@\s:]*):([^/@\s]+)@")
_PARAMETER = re.compile(r"((?:password|passwd|token|secret|key|signature)[\w-]*)=[^&\s]+", re.IGNORECASE)


def masked(text: str, *, known: str = "") -> str:
    """A text without the passwords of the addresses in it, and without the one of a `known` address wherever it stands.

    postgresql://grpo:s3cret@db/prefect?sslpassword=x → postgresql://grpo:***@db/prefect?sslpassword=***
    """
    password = _LOGIN.search(known)
    if password is not None:
        for form in {password[2], unquote(password[2])}:
            text = text.replace(form, HIDDEN)
    return _PARAMETER.sub(rf"\1={HIDDEN}", _LOGIN.sub(rf"\1:{HIDDEN}@", text))


def refuse_credentials(uri: str) -> str:
    """The address, if it holds no password. Raises `ConfigError`, which does not repeat it."""
    parts = urlsplit(uri)
    if parts.scheme and (parts.password is not None or "@" in parts.netloc or parts.query):
        raise ConfigError(
            f"store {parts.scheme}://…{parts.path} holds credentials or options; leave them out and set them in the "
            "environment, for S3 AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL"
        )
    return uri
