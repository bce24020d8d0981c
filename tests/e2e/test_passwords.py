"""Addresses with passwords whose servers do not answer: no output, log or database repeats the password."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contents import files_with
from tests.places import ROOT
from tests.ports import own_port

pytestmark = pytest.mark.e2e

SECRET = "pa55word9q"
LOGIN = f"me:{SECRET}%40x"
QUICKSTART = "data/configs/quickstart.yaml"
ROLLBACK = ("rollback", "models:/support-desk@champion", "--reason", "a test")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with its databases, in which every command of these tests leaves what it leaves."""
    home = tmp_path_factory.mktemp("passwords")
    done = _grpo(home, "migrate")
    assert done.returncode == 0, done.stderr
    return home


def _grpo(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    others = ("PREFECT", "MLFLOW", "AWS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    environment |= {
        "GRPO_HOME": str(home),
        "PREFECT_SERVER_API_PORT": str(own_port()),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "GRPO_DEBUG": "1",
        **variables,
    }
    command = [sys.executable, "-m", "grpo_cli", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def _kept(home: Path) -> list[Path]:
    """Files that contain the password."""
    return files_with(SECRET.encode(), home)


@pytest.mark.parametrize(
    ("arguments", "variable", "address"),
    [
        (("train", QUICKSTART), "PREFECT_API_URL", "http://{login}@{place}/api"),
        (ROLLBACK, "MLFLOW_TRACKING_URI", "http://{login}@{place}"),
        (ROLLBACK, "MLFLOW_TRACKING_URI", "postgresql://{login}@{place}/mlflow"),
        (("migrate",), "MLFLOW_TRACKING_URI", "postgresql://{login}@{place}/mlflow"),
        (("migrate",), "PREFECT_API_DATABASE_CONNECTION_URL", "postgresql+asyncpg://{login}@{place}/prefect"),
        (ROLLBACK, "PREFECT_API_DATABASE_CONNECTION_URL", "postgresql+asyncpg://{login}@{place}/prefect"),
        (("train", QUICKSTART, "--set", "store=s3://bucket/x"), "AWS_ENDPOINT_URL", "http://{login}@{place}"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value.partition("://")[0],
)  # fmt: skip
def test_the_password_of_an_unreachable_server_is_not_repeated(
    home: Path, arguments: tuple[str, ...], variable: str, address: str
):
    """The command fails; neither its output nor any byte below the home has the password."""
    url = address.format(login=LOGIN, place=f"127.0.0.1:{own_port()}")
    done = _grpo(home, *arguments, **{variable: url})
    assert done.returncode != 0, done.stdout
    assert SECRET not in done.stdout + done.stderr
    assert not list(_kept(home))
