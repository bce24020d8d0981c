"""Passwords: never in a message."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from grpo.errors import ConfigError
from grpo.storage.credentials import mask_errors, masked, refuse_credentials, without_login


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://grpo:s3cret@db:5432/x", "postgresql://grpo:***@db:5432/x"),
        ("s3://bucket/a?secret_key=abc&region=eu", "s3://bucket/a?secret_key=***&region=eu"),
        ("http://127.0.0.1:4200/api", "http://127.0.0.1:4200/api"),
        ("http://me:p@ss@host/api", "http://me:***@host/api"),
        ("http://:s3cret@host:5000", "http://:***@host:5000"),
        ("models:/support-desk@champion at http://host:5000", "models:/support-desk@champion at http://host:5000"),
        ("key sk-grpo-Eut9ecarzNpDS7ijHK6x4kIp, desk-00293", "key ***, desk-00293"),
        ("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.c2ln!", "Bearer ***!"),
        ("postgresql://u:Hunt/er16@h:1/db", "postgresql://u:***@h:1/db"),
        ("http://u:a/b/c@h/x,http://d@e", "http://u:***@e"),
        ('{"a":"http://u:p@h/x","b":"c@d"}', '{"a":"http://u:***@h/x","b":"c@d"}'),
        ("openai+http://h:8000/v1#org/m@v1", "openai+http://h:8000/v1#org/m@v1"),
        ("no login for postgresql://a:b@c and http://d:e@f", "no login for postgresql://a:***@c and http://d:***@f"),
    ],
)
def test_passwords_are_masked(text: str, shown: str):
    """Wherever an address stands in a text."""
    assert masked(text) == shown


def test_a_password_is_masked_without_its_address():
    """As drivers repeat it in their errors, encoded or not."""
    known = "postgresql://grpo:p%40ss@db/x"
    assert masked("login p@ss failed, p%40ss given", known=known) == "login *** failed, *** given"


def test_a_login_leaves_its_address():
    """Decoded, as packages take user and password; an address without a password stays as it is."""
    assert without_login("http://me:p%40ss@host:5000/x") == ("http://host:5000/x", ("me", "p@ss"))
    assert without_login("http://me:p/ss@host:5000") == ("http://host:5000", ("me", "p/ss"))
    assert without_login("http://me@host/x") == ("http://me@host/x", None)
    assert without_login("sqlite:///runs/mlflow.db") == ("sqlite:///runs/mlflow.db", None)


def test_the_setting_that_holds_credentials_is_named_and_not_repeated():
    """An endpoint with a password is refused."""
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL http://…/x holds credentials") as caught:
        refuse_credentials("http://me:s3cret@minio:9000/x", name="AWS_ENDPOINT_URL")
    assert "s3cret" not in str(caught.value)


def test_log_lines_and_tracebacks_of_any_package_are_masked(caplog: pytest.LogCaptureFixture):
    """In the message, in its arguments, and in the exception that is logged with it."""
    before = logging.getLogRecordFactory()
    hook = sys.excepthook
    mask_errors()
    try:
        logger = logging.getLogger("another.package")
        logger.error("no answer from %s", "http://me:s3cret@host/api")
        try:
            raise ConnectionError("postgresql://me:s3cret@db/x is away")
        except ConnectionError:
            logger.exception("lost")
    finally:
        logging.setLogRecordFactory(before)
        sys.excepthook = hook
    assert "no answer from http://me:***@host/api" in caplog.text
    assert "ConnectionError: postgresql://me:***@db/x is away" in caplog.text
    assert "s3cret" not in caplog.text


def test_the_traceback_that_ends_a_process_is_masked():
    """An uncaught error may end up in a log."""
    code = "from grpo.storage.credentials import mask_errors; mask_errors(); raise OSError('http://me:s3cret@host/x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert "OSError: http://me:***@host/x" in done.stderr
    assert "s3cret" not in done.stderr
