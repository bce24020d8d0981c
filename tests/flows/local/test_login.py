"""The logins of a home's servers: one for all processes, readable by the owner alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.errors import ConfigError
from grpo_local.login import SERVER, login, login_file, password_hint
from tests.places import ROOT


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of the tests puts its login into the environment."""
    monkeypatch.delenv(SERVER, raising=False)


def test_concurrent_processes_get_the_same_login(tmp_path: Path):
    """Six first commands of a home: one generates it, and the others read it whole."""
    code = "from pathlib import Path; from grpo_local.login import login; "
    code += f"print(login(Path({str(tmp_path)!r}), 'prefect'))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    drawn = {process.communicate(timeout=240)[0].strip() for process in started}
    assert drawn == {login(tmp_path, "prefect")}
    assert login(tmp_path, "prefect").startswith("grpo:")
    assert len(login(tmp_path, "prefect")) == len("grpo:") + 43, "32 random bytes in base64"


def test_another_home_has_another_login(tmp_path: Path):
    """It is random."""
    assert login(tmp_path / "one", "prefect") != login(tmp_path / "other", "prefect")


def test_only_the_owner_reads_the_file(tmp_path: Path):
    """Under any umask, and also after its permissions were changed."""
    before = os.umask(0)
    try:
        login(tmp_path, "prefect")
    finally:
        os.umask(before)
    file = login_file(tmp_path, "prefect")
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    login(tmp_path, "prefect")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_login_of_the_user_is_used_and_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is that of PREFECT_SERVER_API_AUTH_STRING; the hint names the variable, and not the password."""
    monkeypatch.setenv(SERVER, "me:my-own-password")
    assert login(tmp_path, "prefect") == "me:my-own-password"
    assert not login_file(tmp_path, "prefect").exists()
    assert SERVER in password_hint(tmp_path, "prefect")
    assert "my-own-password" not in password_hint(tmp_path, "prefect")


def test_the_hint_names_the_file_and_not_the_password(tmp_path: Path):
    """The output of `grpo up` and `grpo ui` may stay in a log."""
    drawn = login(tmp_path, "prefect")
    assert str(login_file(tmp_path, "prefect")) in password_hint(tmp_path, "prefect")
    assert drawn not in password_hint(tmp_path, "prefect")


@pytest.mark.parametrize("content", ["", "short", "grpo:with a blank in it", "grpo:pässwörter-sind-lang"])
def test_a_login_that_protects_nothing_is_refused(tmp_path: Path, content: str):
    """Empty, guessable, or not possible in a header; the error does not repeat it."""
    login(tmp_path, "prefect")
    login_file(tmp_path, "prefect").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"prefect\.login") as caught:
        login(tmp_path, "prefect")
    assert not content or content not in str(caught.value)
