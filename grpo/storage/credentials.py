"""Passwords in URIs: masked in messages and logs, refused in configs."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from types import TracebackType
from urllib.parse import unquote, urlsplit

from grpo.errors import ConfigError, printable

HIDDEN = "***"
_LOGIN = re.compile(r"""(?<=://)([^/@\s:]*):(?!\d{1,5}[/?#])([^/\s]+(?:/[^\s"'<>]{0,256})?)@""")
"""User and password of a URI. A password may have a slash, which people forget to encode. Digits before a slash are a
port, e.g. in http://host:8000/v1#model@revision."""
_TOKEN = re.compile(r"\b(?:hf_[A-Za-z0-9]{12,}|sk-[A-Za-z0-9_-]{16,}|eyJ[\w-]+\.[\w-]+\.[\w-]*)")
"""Tokens of a hub, API keys, JSON Web Tokens."""
_PARAMETER = re.compile(r"((?:password|passwd|token|secret|key|signature)[\w-]{0,40})=[^&\s]+", re.IGNORECASE)


def masked(text: str, *, known: str = "") -> str:
    """Mask the passwords of URIs, tokens and API keys in a text, and the password of a `known` URI anywhere in it.

    postgresql://grpo:s3cret@db/prefect?sslpassword=x → postgresql://grpo:***@db/prefect?sslpassword=***
    """
    password = _LOGIN.search(known)
    if password is not None:
        for form in {password[2], unquote(password[2])}:
            text = text.replace(form, HIDDEN)
    return _PARAMETER.sub(rf"\1={HIDDEN}", _TOKEN.sub(HIDDEN, _LOGIN.sub(rf"\1:{HIDDEN}@", text)))


class MaskedRecord(logging.LogRecord):
    """Log record with masked passwords and escaped control characters in message and traceback.

    Line breaks in its arguments are escaped, because anybody may have written these texts. Line breaks in the message
    itself stay.
    """

    def getMessage(self) -> str:
        """See `logging.LogRecord`."""
        text = printable(masked(super().getMessage()))
        return text if "\n" in str(self.msg) else text.replace("\n", "\\n")

    @property
    def exc_text(self) -> str | None:
        """Masked traceback, written by the first formatter and read by the others."""
        return self._traceback

    @exc_text.setter
    def exc_text(self, text: str | None) -> None:
        self._traceback = None if text is None else printable(masked(text))


def mask_errors() -> None:
    """Mask passwords in all log records of this process and in the traceback of an uncaught error."""
    logging.setLogRecordFactory(MaskedRecord)
    sys.excepthook = _print_masked


def _print_masked(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(printable(masked("".join(traceback.format_exception(kind, error, trace)))))


def holds_password(text: str) -> bool:
    """Return True for a text with a URI that contains a password."""
    return _LOGIN.search(text) is not None


def without_login(uri: str) -> tuple[str, tuple[str, str] | None]:
    """Split a URI into a URI without credentials and the decoded (user, password), or None if it has no password.

    http://me:p%40ss@host:5000/x → http://host:5000/x, (me, p@ss)
    """
    match = _LOGIN.search(uri)
    if match is None:
        return uri, None
    return uri[: match.start()] + uri[match.end() :], (unquote(match[1]), unquote(match[2]))


def refuse_credentials(uri: str, *, name: str = "store") -> str:
    """Return a URI without credentials. Raises `ConfigError`, which does not contain them."""
    parts = urlsplit(uri)
    if parts.scheme and (parts.password is not None or "@" in parts.netloc or parts.query):
        raise ConfigError(
            f"{name} {parts.scheme}://…{parts.path} holds credentials or options. Leave them out and set them in the "
            "environment, for S3 AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL"
        )
    return uri
