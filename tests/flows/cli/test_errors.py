"""Exit codes, and the one-line message of each expected failure."""

from __future__ import annotations

import errno
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import metadata
from pathlib import Path

import httpx
import pytest
import sqlalchemy
import typer
from typer.testing import CliRunner, Result

from grpo.errors import (
    DISTRIBUTION,
    ConfigError,
    PolicyError,
    PromotionRefused,
    RegistryError,
    StorageError,
    install_command,
)
from grpo.interrupts import Stopped
from grpo.storage.home import home
from grpo_cli.app import app
from grpo_cli.errors import FAILED, known_failure, with_exit_codes
from tests.places import ROOT
from tests.ports import own_port

CONFIGS = ROOT / "data" / "configs"
LOGIN = "me:s3cr3t%40x"


def _raised(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the error under test
        return error
    raise AssertionError("nothing was raised")


def test_prefect_that_cannot_be_reached_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch):
    """A real refused connection, also below the error that Prefect makes of it."""
    address = f"http://me:s3cret@127.0.0.1:{own_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", address)
    refused = _raised(lambda: httpx.get(address))
    around = RuntimeError("the flow ended")
    around.__cause__ = refused
    for error in (refused, around, RuntimeError(f"Failed to reach API at {address}")):
        failure = known_failure(error)
        assert isinstance(failure, ConnectionError)
        assert "Prefect's server at http://me:***@127.0.0.1:" in str(failure)
        assert "set PREFECT_API_URL" in str(failure)


def test_a_stopped_server_of_the_command_is_named_by_the_request(monkeypatch: pytest.MonkeyPatch):
    """The variable is removed with the server, before the command ends."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    port = own_port()
    failure = known_failure(_raised(lambda: httpx.get(f"http://127.0.0.1:{port}/api/flow_runs/filter")))
    assert f"Prefect's server at http://127.0.0.1:{port}/api cannot be reached" in str(failure)


def test_mlflow_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch):
    """The error of its client after its own retries."""
    from mlflow import MlflowClient

    address = f"http://me:s3cret@127.0.0.1:{own_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    failure = known_failure(_raised(lambda: MlflowClient(address).search_experiments()))
    assert isinstance(failure, ConnectionError)
    assert "MLflow at http://me:***@127.0.0.1:" in str(failure)
    assert "s3cret" not in str(failure)


def test_a_refusal_of_mlflow_is_one_line(tmp_path: Path):
    """Its message, on one line."""
    from mlflow.exceptions import MlflowException

    failure = known_failure(MlflowException("no such\nmodel"))
    assert isinstance(failure, RegistryError)
    assert str(failure) == "MLflow refuses: no such model"


def test_a_login_that_mlflow_refuses_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch):
    """Of its client, and of the requests by which artifacts go through the server."""
    import requests
    from mlflow.exceptions import RestException

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@127.0.0.1:5000")
    answer = requests.Response()
    answer.status_code = 401
    refusals = (
        RestException({"error_code": "UNAUTHENTICATED", "message": "the login is wrong"}),
        requests.exceptions.HTTPError("401 Client Error", response=answer),
    )
    for refusal in refusals:
        failure = known_failure(refusal)
        assert isinstance(failure, ConnectionError)
        assert str(failure).startswith("MLflow at http://me:***@127.0.0.1:5000 refuses the login. Set MLFLOW_TRACKING_")


def test_a_database_that_is_not_one_is_one_line(tmp_path: Path):
    """SQLAlchemy adds the statement and a link; the reason is enough."""
    path = tmp_path / "mlflow.db"
    path.write_text("not a database, but long enough to be taken for one")
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    failure = known_failure(_raised(lambda: engine.connect().exec_driver_sql("SELECT * FROM t")))
    engine.dispose()
    assert str(failure).startswith("a database cannot be used: file is not a database. ")


def test_a_full_disk_below_another_error_is_a_storage_error():
    """A server's database on the same disk, and a file."""
    assert isinstance(known_failure(sqlite3.OperationalError("database or disk is full")), StorageError)
    assert isinstance(known_failure(OSError(28, "No space left on device", "/there")), StorageError)


def test_a_full_disk_is_the_one_of_the_folder_that_the_command_was_given(small_disk: Path, tmp_path: Path):
    """The system does not name the file of a write. If the folder's disk has room, the home is named."""
    (small_disk / "fill").write_bytes(bytes(2**19))
    full = OSError(errno.ENOSPC, "No space left on device")
    assert str(known_failure(full, [tmp_path, small_disk / "out"])).startswith(
        f"cannot write {small_disk / 'out'}: the"
    )
    assert str(known_failure(full, [tmp_path])).startswith(f"cannot write {home()}: the disk is full")


def test_a_file_that_the_system_refuses_is_named():
    """An output that is a folder, a path below a file."""
    assert "/: Is a directory" in str(known_failure(_raised(lambda: Path("/").write_text("x", encoding="utf-8"))))


@pytest.mark.parametrize("error", [ConfigError("x"), PolicyError("x"), ConnectionError("there cannot be reached")])
def test_an_error_of_this_package_is_unchanged(error: Exception):
    """It has value, place and remedy."""
    assert known_failure(error) is error


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("x"), AssertionError()])
def test_a_fault_of_the_project_keeps_its_traceback(error: Exception):
    """An unexpected error is not presented as wrong input."""
    assert known_failure(error) is None


def _ended_by(error: BaseException) -> Result:
    failing = typer.Typer()

    def fail() -> None:
        raise error

    failing.command()(with_exit_codes(fail))
    return CliRunner().invoke(failing, [])


@pytest.mark.parametrize("extra", metadata(DISTRIBUTION).get_all("Provides-Extra") or [])
def test_the_extra_that_is_missing_can_be_copied(extra: str):
    """Brackets are not markup."""
    remedy = install_command(extra)
    assert remedy in _ended_by(PolicyError(f"a package is not installed; {remedy}")).stderr


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            ConfigError("pip install 'grpo-agent-framework[vllm]'"),
            2,
            "ConfigError: pip install 'grpo-agent-framework[vllm]'",
        ),
        (PolicyError("record [/x] :smile: \x1b[2J"), 1, "PolicyError: record [/x] :smile: \\x1b[2J"),
        (PromotionRefused("worse"), 3, "PromotionRefused: worse"),
        (ConnectionError("http://a:b@h cannot be reached"), 1, "ConnectionError: http://a:***@h cannot be reached"),
        (ConfigError("max_new_tokens=3 is too few"), 2, "ConfigError: max_new_tokens=3 is too few"),
    ],
    ids=["extra", "markup", "refused", "password", "a setting"],
)
def test_a_command_ends_with_one_plain_line(error: Exception, code: int, line: str):
    """Text is not markup, passwords of addresses are masked, and the exit code is the kind of failure."""
    result = _ended_by(error)
    assert (result.exit_code, result.stderr.strip()) == (code, line)


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), GeneratorExit()])
def test_code_that_ends_the_process_is_a_failed_command(error: BaseException):
    """Never exit code 0 without a result: one line with the file, and 1."""
    result = _ended_by(error)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"UserCodeError: code of this command raised {type(error).__name__}")
    assert "test_errors.py:" in result.stderr


def test_a_signal_keeps_its_exit_code():
    """143, which the handler of SIGTERM raises."""
    assert _ended_by(Stopped(143)).exit_code == 143


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "arguments",
    [
        ("train", f"{CONFIGS}/quickstart.yaml", "--set", f"policy.model=openai+http://{LOGIN}@127.0.0.1:1/v1#m"),
        ("train", f"{CONFIGS}/quickstart.yaml", "--set", f"reward.0.options={{model: 'http://{LOGIN}@host/v1#m'}}"),
        ("train", f"{CONFIGS}/quickstart.yaml", "--set", f"rollout.dask_address=tcp://{LOGIN}@127.0.0.1:8786"),
        ("train", f"{CONFIGS}/quickstart.yaml", "--set", f"http://{LOGIN}@127.0.0.1"),
        ("evaluate", "--checkpoint", f"openai+http://{LOGIN}@127.0.0.1:1/v1#m", "--message", "hello"),
        ("tune", f"{CONFIGS}/tune.yaml", "--set", f"storage=postgresql://{LOGIN}@127.0.0.1:1/optuna"),
        ("doctor", "--store", f"s3://{LOGIN}@bucket/x"),
    ],
    ids=["model", "judge", "dask", "override", "checkpoint", "storage", "store"],
)
def test_an_address_with_a_password_is_refused_and_not_repeated(arguments: tuple[str, ...]):
    """In any setting; nothing is started with it."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (1, 2), result.output
    assert "s3cr3t" not in result.output
    assert isinstance(result.exception, SystemExit), result.exception


def test_a_place_that_cannot_be_looked_at_hides_no_error(tmp_path: Path):
    """Its name is too long, which is the error itself."""
    place = tmp_path / ("a" * 300)
    failure = known_failure(_raised(lambda: place.write_text("")), [place])
    assert "File name too long" in str(failure)


_PRINTS = """
from grpo_cli.console import PlainConsole
from grpo_cli.errors import with_exit_codes
import sys, typer

@with_exit_codes
def command():
    for _ in range(100_000):
        PlainConsole().print("line") if sys.argv[1] == "console" else typer.echo("line")

app = typer.Typer()
app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(command)
app()
"""


@pytest.mark.parametrize("printer", ["console", "echo"])
def test_a_command_ends_without_a_message_if_nobody_reads_its_output(printer: str):
    """As in `grpo models | head -1`. It is not an error of the user's code."""
    command = [sys.executable, "-c", _PRINTS, printer]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == FAILED


def test_a_full_disk_is_the_one_of_the_output(small_disk: Path):
    """The home has room, so that it is not named."""
    (small_disk / "fill").write_bytes(bytes(2**16))
    code = (
        "from grpo_cli.errors import known_failure; import errno, sys;"
        "print(known_failure(OSError(errno.ENOSPC, 'No space left on device')), file=sys.stderr)"
    )
    with (small_disk / "output").open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=output, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=True
        )
    assert done.stderr.startswith("cannot write the file of this command's output: the disk is full")
