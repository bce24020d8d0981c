"""`grpo keys`: the secret is printed once, alone; the rest is about the file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo.config.serving import CallerLimits
from grpo.serving.access.keys import KeyStore
from grpo_cli.app import app
from grpo_cli.errors import WRONG_INPUT


def _keys(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["keys", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_secret_is_the_only_line_on_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    """It works, with the scopes and limits of the options; it is in no log, list or file."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    caplog.set_level(logging.DEBUG)
    options = ("--requests-per-minute=1", "--tokens-per-minute=2", "--parallel=3", "--tokens-per-day=4")
    code, output, notice = _keys(
        "create", "shop", "--scope", "chat", "--scope=feedback", *options, "--tokens-per-month=5"
    )
    assert code == 0
    secret = output.removesuffix("\n")
    assert "shown once" in notice
    caller = KeyStore(tmp_path / "keys.json").caller(secret)
    assert caller is not None
    assert (caller.name, caller.scopes) == ("shop", {"chat", "feedback"})
    assert caller.limits == CallerLimits(
        requests_per_minute=1, tokens_per_minute=2, parallel=3, tokens_per_day=4, tokens_per_month=5
    )
    listed = _keys("list")[1]
    assert "shop: scopes chat, feedback; requests per minute 1, tokens per minute 2, parallel 3" in listed
    assert caller.key_hash[:12] in listed
    for text in (notice, listed, caplog.text, (tmp_path / "keys.json").read_text()):
        assert secret not in text


def test_a_revoked_key_is_not_listed(tmp_path: Path):
    """In the file of --file."""
    file = tmp_path / "sub" / "mine.json"
    secret = _keys("create", "shop", "--scope", "chat", "--file", str(file))[1].strip()
    assert _keys("revoke", "shop", "--file", str(file))[:2] == (0, "key shop is revoked\n")
    assert "the server refuses every request, because the file has no key" in _keys("list", "--file", str(file))[1]
    assert KeyStore(file).caller(secret) is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("create", "a b", "--scope", "chat"), "name"),
        (("create", "shop"), "Missing option '--scope'"),
        (
            ("create", "shop", "--scope", "root"),
            "'chat', 'feedback', 'outcomes', 'log', 'metrics', 'rollout' or 'admin'",
        ),
        (("create", "shop", "--scope", "chat", "--parallel", "0"), "greater than or equal to 1"),
        (("revoke", "shop"), "key 'shop' does not exist"),
        (("renew", "shop"), "No such command"),
    ],
)
def test_wrong_input_ends_with_its_exit_code(tmp_path: Path, arguments: tuple[str, ...], reason: str):
    """And one message; no file is written."""
    code, output, error = _keys(*arguments, *(() if arguments[0] == "renew" else ("--file", str(tmp_path / "k.json"))))
    assert (code, output) == (WRONG_INPUT, "")
    assert reason in error
    assert not (tmp_path / "k.json").exists()


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path):
    """With the command that mends it."""
    file = tmp_path / "k.json"
    _keys("create", "shop", "--scope", "chat", "--file", str(file))
    file.chmod(0o644)
    code, _, error = _keys("list", "--file", str(file))
    assert code == WRONG_INPUT
    assert f"chmod 600 {file}" in error
