"""Addresses and the passwords in them: masked where an address is shown, refused where it is kept."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from types import TracebackType
from urllib.parse import unquote, urlsplit

from grpo.errors import ConfigError

HIDDEN = "***"
_LOGIN = re.compile(r"(?<=://)([^/@\s:]*):([^/\s]+)@")
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


class MaskedRecord(logging.LogRecord):
    """A log record whose message and traceback show no password."""

    def getMessage(self) -> str:
        """See `logging.LogRecord`."""
        return masked(super().getMessage())

    @property
    def exc_text(self) -> str | None:
        """The traceback, which the first formatter writes and the others read."""
        return self._traceback

    @exc_text.setter
    def exc_text(self, text: str | None) -> None:
        self._traceback = None if text is None else masked(text)


def mask_errors() -> None:
    """Mask passwords in every log line of this process, and in the traceback of an error that ends it."""
    logging.setLogRecordFactory(MaskedRecord)
    sys.excepthook = _print_masked


def _print_masked(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(masked("".join(traceback.format_exception(kind, error, trace))))


def holds_password(text: str) -> bool:
    """Whether a text has an address with a password in it."""
    return _LOGIN.search(text) is not None


def without_login(uri: str) -> tuple[str, tuple[str, str] | None]:
    """The address without the user and the password in it, and the two, decoded; None where it holds no password.

    http://me:p%40ss@host:5000/x → http://host:5000/x, (me, p@ss)
    """
    match = _LOGIN.search(uri)
    if match is None:
        return uri, None
    return uri[: match.start()] + uri[match.end() :], (unquote(match[1]), unquote(match[2]))


def refuse_credentials(uri: str, *, name: str = "store") -> str:
    """The address, if it holds no password. Raises `ConfigError`, which does not repeat it."""
    parts = urlsplit(uri)
    if parts.scheme and (parts.password is not None or "@" in parts.netloc or parts.query):
        raise ConfigError(
            f"{name} {parts.scheme}://…{parts.path} holds credentials or options; leave them out and set them in the "
            "environment, for S3 AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL"
        )
    return uri
