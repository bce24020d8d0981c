from __future__ import annotations

import http.server
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from grpo.config.pipeline import load_config
from grpo.errors import ConfigError
from grpo_cli import doctor
from grpo_local.checks import (
    CheckResult,
    DoctorReport,
    check_files,
    check_folders,
    check_named_servers,
    check_ports,
    check_records,
    check_servers,
    check_store,
    require,
)
from grpo_local.login import PASSWORD, SERVER, USERNAME
from grpo_local.upgrade import upgrade
from tests.places import ROOT
from tests.ports import own_port

METADATA = """Metadata-Version: 2.1
Name: grpo-agent-framework
Version: 9
Requires-Python: >=3.11
Requires-Dist: pydantic>=2
Requires-Dist: rich>=9000
Requires-Dist: no-such-package>=1
Requires-Dist: no-such-vendor>=1; extra == "vendor"
Requires-Dist: no-such-linter>=1; extra == "dev"
Requires-Dist: no-such-windows>=1; sys_platform == "win32"
Provides-Extra: vendor
Provides-Extra: dev
"""


def _installed(folder: Path) -> None:
    """An installation of the package whose metadata asks for other things."""
    metadata = folder / "grpo_agent_framework-9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(METADATA)


def _by_name(checks: Iterable[CheckResult]) -> dict[str, CheckResult]:
    return {check.name: check for check in checks}


def _stores(home: Path, store: str) -> dict[str, CheckResult]:
    return _by_name([*check_records(home), check_store(store)])


def test_packages_are_compared_with_the_bounds_of_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Too old and missing are problems with the command to install them; a package for another system is not."""
    _installed(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    checks = _by_name(doctor._check_packages())
    assert {name: check.state for name, check in checks.items()} == {
        "pydantic": "ok",
        "rich": "problem",
        "no-such-package": "problem",
    }
    assert "and >=9000 is needed" in checks["rich"].detail
    assert checks["no-such-package"].remedy == "pip install 'no-such-package>=1'"


def test_a_missing_extra_is_not_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its remedy names the extra; development extras are not checked."""
    _installed(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    checks = _by_name(doctor._check_extras())
    assert list(checks) == ["no-such-vendor (vendor)"]
    check = checks["no-such-vendor (vendor)"]
    assert (check.state, check.remedy) == ("absent", "pip install 'grpo-agent-framework[vendor]'")


def test_a_path_that_cannot_be_used_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A home under a file, a store of unknown kind, a file that is not a database; a missing folder is fine."""
    (tmp_path / "file").write_text("")
    (tmp_path / "broken.db").write_text("no database " * 100)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'broken.db'}")
    wrong = _stores(tmp_path / "file" / "home", "ftpx://host/there")
    assert {name: check.state for name, check in wrong.items()} == dict.fromkeys(wrong, "problem")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'home' / 'mlflow.db'}")
    right = _stores(tmp_path / "home", str(tmp_path / "store"))
    assert {name: check.state for name, check in right.items()} == dict.fromkeys(right, "ok")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.db", "file"]


@pytest.mark.parametrize("variable", ["PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_CONNECTION_URL"])
@pytest.mark.parametrize(
    "address",
    [
        "postgresql://grpo:pa/ss@db/prefect",
        "postgresql+psycopg2://grpo:pa/ss@db/prefect",
        "postgresql:grpo:pa/ss@db",
        "sqlite:////data/prefect.db",
        "/data/prefect.db",
    ],
)
def test_an_address_whose_driver_prefect_cannot_use_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, variable: str
):
    """It is refused without a connection, by `grpo doctor`, by `grpo migrate` and by the server itself.

    The message names the variable and not the address, because no pattern finds every password.
    """
    for name in ("PREFECT_API_URL", "PREFECT_API_DATABASE_CONNECTION_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv(variable, address)
    check = _by_name(check_records(tmp_path))["prefect"]
    assert (check.state, check.wrong_input) == ("problem", True)
    assert check.detail.startswith(f"{variable} does not begin with postgresql+asyncpg:// or sqlite+aiosqlite://")
    assert check.remedy == "Set it to postgresql+asyncpg://USER:PASSWORD@HOST/NAME or to sqlite+aiosqlite:////PATH"
    with pytest.raises(ConfigError, match=f"{variable} does not begin with") as refusal:
        list(upgrade(tmp_path, dry_run=True))
    assert "pa/ss" not in f"{check} {refusal.value}"


def test_prefects_server_refuses_a_driver_that_it_cannot_use(monkeypatch: pytest.MonkeyPatch):
    """In one line, before it connects."""
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", "postgresql://grpo:secret@db/prefect")
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "grpo:" + "x" * 40)
    monkeypatch.setenv("PREFECT_SERVER_CORS_ALLOWED_ORIGINS", "http://127.0.0.1:4200")
    server = [sys.executable, "-m", "grpo_local.prefect_server.app"]
    ended = subprocess.run(server, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, "Traceback" in ended.stderr, "secret" in ended.stderr) == (1, False, False)
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(
        "ConfigError: PREFECT_SERVER_DATABASE_CONNECTION_URL does not begin with postgresql+asyncpg:"
    )


@pytest.mark.parametrize("name", ["mlflow", "prefect"])
def test_a_database_of_0_bytes_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """It was truncated. A home without the file is new, and has no problem."""
    for variable in ("PREFECT_API_URL", "PREFECT_API_DATABASE_CONNECTION_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    file = tmp_path / ("mlflow.db" if name == "mlflow" else "prefect/prefect.db")
    file.parent.mkdir(exist_ok=True)
    file.touch()
    checks = _by_name(check_records(tmp_path))
    assert {check.name for check in checks.values() if check.state == "problem"} == {name}
    assert "has 0 bytes" in checks[name].detail
    assert checks[name].remedy == "Restore a backup, or remove the file if it never had any"
    file.unlink()
    assert {check.state for check in check_records(tmp_path)} == {"ok"}


@pytest.mark.parametrize(
    ("file", "content", "place"),
    [
        ("services/signing.key", "", "services/signing.key has 0 characters"),
        ("services/prefect.login", "", "services/prefect.login"),
        ("services/mlflow.login", "grpo", "services/mlflow.login"),
        ("stores.json", '{"/old": ', "stores.json is damaged"),
        ("stores.json", "[]", "stores.json is damaged"),
        ("moved.json", '["/ol', "moved.json is damaged"),
    ],
)
def test_a_damaged_file_of_the_home_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: str, place: str
):
    """It was cut off when its backup was made. Commands refuse it in the same line."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    for variable in (SERVER, USERNAME, PASSWORD):  # a login in the environment is read instead of the file
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(content)
    (check,) = check_files(tmp_path)
    assert check.state == "problem"
    assert place in check.detail
    assert check.remedy
    (tmp_path / file).unlink()
    assert list(check_files(tmp_path)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_home_of_another_user_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    """It was restored by root. The report names the folder, although nothing in it can be looked at."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        monkeypatch.setenv("GRPO_HOME", folder)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
        (home / "services").mkdir()
        (home / "services" / "prefect.login").write_text("grpo:login-of-another-user")
        os.seteuid(65534)
        try:
            checks = [*check_records(home), *check_files(home), check_store(f"{home}/artifacts")]
        finally:
            os.seteuid(0)
    assert [(check.name, check.state) for check in checks] == [("home", "problem"), ("artifacts", "problem")]
    assert f"the home {home}: Permission denied" in checks[0].detail


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("closed", ["mlartifacts", "services/promotions", "mlflow.db"])
def test_a_part_of_the_home_that_may_not_be_written_is_found(monkeypatch: pytest.MonkeyPatch, closed: str):
    """A run would train to its end first. A folder may be another user's, so that it is a warning."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        monkeypatch.delenv("PREFECT_API_URL", raising=False)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
        for name in ("mlartifacts", "services/promotions"):
            (home / name).mkdir(parents=True)
        sqlite3.connect(home / "mlflow.db").close()
        (home / "mlflow.db").write_bytes(b"x")
        for path in (home, *home.rglob("*")):
            os.chown(path, 65534, 65534)
        (home / closed).chmod(0o400)
        os.seteuid(65534)
        try:
            checks = _by_name([*check_records(home), *check_folders(home)])
        finally:
            os.seteuid(0)
    check = checks["mlflow" if closed == "mlflow.db" else "folders"]
    assert check.state == ("problem" if closed == "mlflow.db" else "warning")
    assert f"{home / closed}" in check.detail
    assert "may not be read and written" in check.detail
    assert checks["home"].state == "ok"


def test_a_database_that_is_in_use_is_not_moved_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The advice is to wait, because the records are whole."""
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kinds: connect(*args, **{**kinds, "timeout": 0.01}))
    with closing(connect(tmp_path / "mlflow.db", isolation_level=None)) as user:
        user.execute("CREATE TABLE a (b)")
        user.execute("BEGIN EXCLUSIVE")
        check = _by_name(check_records(tmp_path))["mlflow"]
    assert check.state == "problem"
    assert "database is locked" in check.detail
    assert check.remedy == "Another program holds the database open. Try again when it has ended"


def test_a_read_only_store_is_a_problem(tmp_path: Path):
    """A folder in which no user can write."""
    check = _stores(tmp_path, "/proc")["artifacts"]
    assert check.state == "problem"
    assert check.remedy


def test_a_store_at_an_address_is_probed_and_left_unchanged(tmp_path: Path):
    """A file is written and removed again."""
    import fsspec

    check = _stores(tmp_path, "memory://bucket/artifacts")["artifacts"]
    assert check.state == "ok"
    assert fsspec.filesystem("memory").find("/bucket") == []


def test_a_database_that_does_not_answer_is_a_problem_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nothing listens there; the message has the remedy and not the secret."""
    port = own_port()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql+psycopg2://grpo:s3cret@127.0.0.1:{port}/mlflow")
    check = _stores(tmp_path, str(tmp_path))["mlflow"]
    assert check.state == "problem"
    assert "s3cret" not in check.model_dump_json()
    assert "grpo:***@127.0.0.1" in check.detail


def test_little_disk_space_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The disk of the home, and of a store that lies elsewhere."""
    names = [check.name for check in doctor._check_disks(tmp_path / "home", "memory://bucket")]
    assert names == ["disk of home"]
    monkeypatch.setattr("grpo_cli.doctor._NO_DISK", 2**70)
    full = _by_name(doctor._check_disks(tmp_path / "home", str(tmp_path / "store")))
    assert {check.state for check in full.values()} == {"problem"}
    assert "set store to a larger disk" in full["disk of store"].remedy


class _Answers(http.server.BaseHTTPRequestHandler):
    """A server of version 1.2.3 with a password."""

    open: frozenset[str] = frozenset()
    """Paths that it answers without one."""

    def do_GET(self) -> None:
        allowed = self.headers.get("Authorization") == "Basic bWU6czNjcmV0"  # me:s3cret
        allowed = allowed or self.path in self.open
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(b"{}" if self.path.endswith("/ready") else b'"1.2.3"')

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """Port of that server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_versions_of_servers_are_compared(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An older server is a warning; one that refuses is a problem; no password is printed."""
    monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)  # of the server of the tests
    monkeypatch.setenv("PREFECT_API_URL", f"http://me:s3cret@127.0.0.1:{port}/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:wr0ng@127.0.0.1:{port}")
    checks = _by_name(check_servers(tmp_path))
    assert (checks["prefect"].state, checks["mlflow"].state) == ("warning", "problem")
    assert "answers, 1.2.3. Installed here is 3." in checks["prefect"].detail
    assert "refuses the login" in checks["mlflow"].detail
    printed = "".join(check.model_dump_json() for check in checks.values())
    assert "s3cret" not in printed
    assert "wr0ng" not in printed


@pytest.mark.parametrize(("login", "state"), [("me:s3cret", "warning"), ("me:wr0ng", "problem"), (None, "problem")])
def test_a_server_that_refuses_the_login_is_a_problem_with_a_remedy(
    port: int, login: str | None, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The login of PREFECT_API_AUTH_STRING is sent, and the server answers with another version."""
    monkeypatch.setattr(_Answers, "open", frozenset({"/api/health"}))
    monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
    if login is not None:
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", login)
    check = _by_name(check_servers(tmp_path))["prefect"]
    assert check.state == state
    assert ("PREFECT_API_AUTH_STRING" in check.remedy) == (state == "problem")
    assert login is None or login.partition(":")[2] not in check.model_dump_json()


def test_a_port_in_use_is_reported_before_a_server_needs_it(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run could not start; the pages of MLflow could not be shown."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", str(port))
    monkeypatch.setenv("GRPO_MLFLOW_PORT", str(port))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    checks = _by_name(check_servers(tmp_path))
    assert (checks["prefect port"].state, checks["mlflow port"].state) == ("problem", "warning")
    assert checks["prefect port"].remedy == "Set PREFECT_SERVER_API_PORT to a free port"


@pytest.mark.parametrize("healthy", [True, False], ids=["healthy", "a package is missing"])
def test_the_exit_code_is_that_of_the_checks(tmp_path: Path, healthy: bool):
    """`--json` is one document; exit code 1 when a run would fail; nothing is left behind."""
    path = tmp_path / "path"
    path.mkdir()
    if not healthy:
        _installed(path)
    port = own_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW"))}
    environment |= {"GRPO_HOME": str(tmp_path / "home"), "PREFECT_SERVER_API_PORT": str(port)}
    environment["PYTHONPATH"] = os.pathsep.join([str(path), str(ROOT)])
    command = [sys.executable, "-m", "grpo_cli", "doctor", "--json", "--store", str(tmp_path / "store")]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    document = json.loads(done.stdout)
    assert document["schema_version"] == "2"
    problems = [check["name"] for check in document["checks"] if check["state"] == "problem"]
    assert (done.returncode, problems) == ((0, []) if healthy else (1, ["rich", "no-such-package"]))
    areas = {check["area"] for check in document["checks"]}
    assert areas >= {"python", "packages", "machine", "stores", "servers", "capabilities"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["path"]


def test_files_that_do_not_ship_are_a_problem(tmp_path: Path):
    """Configs, scenarios, model, rubrics and network are checked at the paths that the code reads."""
    assert {check.state for check in doctor.check_shipped_files()} == {"ok"}
    elsewhere = {name: tmp_path / path.relative_to(ROOT) for name, path in doctor._shipped_files().items()}
    missing = list(doctor.check_shipped_files(elsewhere))
    assert {check.state for check in missing} == {"problem"}
    assert not DoctorReport(checks=tuple(missing)).healthy
    assert all("Install the package again" in check.remedy for check in missing)


@pytest.mark.parametrize(
    ("changes", "state", "detail"),
    [
        ((), "ok", "a run of this config can start"),
        (("policy.model=Qwen/Qwen3-0.6B",), "problem", "no folder Qwen/Qwen3-0.6B"),
        (("policy.chat_template='{% for %}'",), "problem", "TemplateSyntaxError"),
        (("reward=[{kind: conciseness, weight: 1, options: {target: 20}}]",), "problem", "can be hacked by"),
        (("scenarios.sources.0.path=nowhere.jsonl",), "problem", "nowhere.jsonl"),
        (("store=/proc/store",), "problem", "/proc/store"),
    ],
    ids=["quickstart", "hub", "template", "reward", "source", "store"],
)
def test_what_a_run_of_a_config_would_refuse_is_a_problem(
    changes: tuple[str, ...], state: str, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By the functions that the dry run calls; the store is not left behind."""
    monkeypatch.chdir(ROOT)
    config = load_config(ROOT / "data" / "configs" / "quickstart.yaml", (f"store={tmp_path / 'store'}", *changes))
    *models, check = doctor._check_config(config)
    names = ["policy.model", "forward path", "chat format", "context"]
    assert [model.name for model in models] == (names if state == "ok" else [])
    assert (check.state, detail in check.detail) == (state, True), check
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_never_answers_is_a_problem_within_seconds(monkeypatch: pytest.MonkeyPatch):
    """The client of a bucket would wait for five minutes."""
    monkeypatch.setattr("grpo_local.checks._STORE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in {**keys, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        started_at = time.monotonic()
        check = check_store("s3://bucket-that-never-answers/x")
        assert time.monotonic() - started_at < 20  # most of it is the import of the client
    assert check.state == "problem"
    assert "s3://bucket-that-never-answers/x: TimeoutError: it has not answered within 1 s" in check.detail


@pytest.mark.parametrize("uri", ["127.0.0.1:5000", "HTTP//host", "postgres://me:s3cret@db/mlflow"])
def test_an_address_of_the_wrong_form_is_wrong_input(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The message has the setting, and an example of an address. It does not ask to start a database."""
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(ConfigError, match=r"MLFLOW_TRACKING_URI=.* is not an address .*http://HOST:PORT") as caught:
        require(check_records(tmp_path))
    assert "Start" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("port", ["abc", "0", "65536", "-1", "", "4200.0", "²"])
def test_a_setting_that_is_not_a_port_is_wrong_input(port: str, monkeypatch: pytest.MonkeyPatch):
    """The message has the setting, its value and the bounds."""
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", port)
    with pytest.raises(ConfigError, match=r"PREFECT_SERVER_API_PORT=.* is not a port\. .* from 1 to 65535"):
        require(check_ports())


class _SecondTry(http.server.BaseHTTPRequestHandler):
    """A server that drops the first connection."""

    dropped = 0

    def do_GET(self) -> None:
        if not _SecondTry.dropped:
            _SecondTry.dropped += 1
            self.connection.close()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}" if "search" in self.path else b'"1.2.3"')

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


def test_a_dropped_connection_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A command does not fail by one dropped connection."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _SecondTry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_address[1]}")
        require(check_named_servers())
        server.shutdown()
        thread.join()
    assert _SecondTry.dropped == 1
    with pytest.raises(ConnectionError, match=r"MLflow at http://127\.0\.0\.1:\d+ does not answer: .*\. Start it"):
        require(check_named_servers())
