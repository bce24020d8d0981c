"""Passwords: never in a message."""

from __future__ import annotations

import pytest

from grpo.credentials import masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://grpo:s3cret@db:5432/x", "postgresql://grpo:***@db:5432/x"),
        ("s3://bucket/a?secret_key=abc&region=eu", "s3://bucket/a?secret_key=***&region=eu"),
        ("http://127.0.0.1:4200/api", "http://127.0.0.1:4200/api"),
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
