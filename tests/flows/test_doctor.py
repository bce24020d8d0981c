from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.doctor.examination import needs
from flows.doctor.installation import extras, packages
from flows.doctor.machine import disk
from flows.doctor.servers import named_servers, ports, servers
from flows.doctor.shipped import shipped
from flows.doctor.stores import stores
from flows.local.checks import CheckResult, DoctorReport, require
from flows.shipped import PARTS
from grpo.config.pipeline import load_config
from grpo.errors import ConfigError
from tests.places import ROOT

METADATA = """Metadata-Version: 2.1
Name: grpo
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
    metadata = folder / "grpo-9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(METADATA)


def _by_name(findings: Iterator[CheckResult]) -> dict[str, CheckResult]:
    return {finding.name: finding for finding in findings}


def test_packages_are_held_against_the_bounds_of_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Too old and missing are problems with what to install; what another system needs is none."""
    _installed(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = _by_name(packages())
    assert {name: finding.state for name, finding in found.items()} == {
        "pydantic": "ok",
        "rich": "problem",
        "no-such-package": "problem",
    }
    assert "is not >=9000" in found["rich"].found
    assert found["no-such-package"].remedy == "pip install 'no-such-package>=1'"


def test_a_missing_extra_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It says which extra brings it; those for work on the project itself are not asked for."""
    _installed(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = _by_name(extras())
    assert list(found) == ["no-such-vendor (vendor)"]
    finding = found["no-such-vendor (vendor)"]
    assert (finding.state, finding.remedy) == ("absent", "pip install 'grpo[vendor]'")


def test_a_place_that_cannot_be_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A home under a file, a store of no known kind, a database that is none; a folder yet to be made is fine."""
    (tmp_path / "file").write_text("")
    (tmp_path / "broken.db").write_text("no database " * 100)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'broken.db'}")
    wrong = _by_name(stores(tmp_path / "file" / "home", "ftpx://host/there"))
    assert {name: finding.state for name, finding in wrong.items()} == dict.fromkeys(wrong, "problem")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'home' / 'mlflow.db'}")
    right = _by_name(stores(tmp_path / "home", str(tmp_path / "store")))
    assert {name: finding.state for name, finding in right.items()} == dict.fromkeys(right, "ok")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.db", "file"]


def test_a_read_only_store_is_a_problem(tmp_path: Path):
    """A folder that is there and takes no files, whoever asks."""
    found = _by_name(stores(tmp_path, "/proc"))["artifacts"]
    assert found.state == "problem"
    assert found.remedy


def test_a_store_at_an_address_is_tried_and_left_as_it_was(tmp_path: Path):
    """A file is written and taken away again."""
    import fsspec

    found = _by_name(stores(tmp_path, "memory://bucket/artifacts"))["artifacts"]
    assert found.state == "ok"
    assert fsspec.filesystem("memory").find("/bucket") == []


def test_a_database_that_does_not_answer_is_a_problem_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nobody listens there; the remedy is said, the secret is not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql+psycopg2://grpo:s3cret@127.0.0.1:{port}/mlflow")
    found = _by_name(stores(tmp_path, str(tmp_path)))["mlflow"]
    assert found.state == "problem"
    assert "s3cret" not in found.model_dump_json()
    assert "grpo:***@127.0.0.1" in found.found


def test_little_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The disk of the home, and of a store that lies elsewhere."""
    names = [finding.name for finding in disk(tmp_path / "home", "memory://bucket")]
    assert names == ["disk of home"]
    monkeypatch.setattr("flows.doctor.machine._NO_DISK", 2**70)
    full = _by_name(disk(tmp_path / "home", str(tmp_path / "store")))
    assert {finding.state for finding in full.values()} == {"problem"}
    assert "set store elsewhere" in full["disk of store"].remedy


class _Answers(http.server.BaseHTTPRequestHandler):
    """A server of version 1.2.3, for those who have the password."""

    open: frozenset[str] = frozenset()
    """Paths that it answers without one."""

    def do_GET(self) -> None:
        allowed = self.headers.get("Authorization") == "Basic bWU6czNjcmV0"  # me:s3cret
        allowed = allowed or self.path in self.open
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(b'"1.2.3"')

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """Where that server listens."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_servers_are_asked_for_their_version(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One that is older than what is installed is a warning; one that refuses is a problem; no password is told."""
    monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)  # of the server of the tests
    monkeypatch.setenv("PREFECT_API_URL", f"http://me:s3cret@127.0.0.1:{port}/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:wr0ng@127.0.0.1:{port}")
    found = _by_name(servers(tmp_path))
    assert (found["prefect"].state, found["mlflow"].state) == ("warning", "problem")
    assert "answers, 1.2.3; installed here is 3." in found["prefect"].found
    assert "does not answer" in found["mlflow"].found
    told = "".join(finding.model_dump_json() for finding in found.values())
    assert "s3cret" not in told
    assert "wr0ng" not in told


@pytest.mark.parametrize(("login", "state"), [("me:s3cret", "warning"), ("me:wr0ng", "problem"), (None, "problem")])
def test_a_server_that_refuses_the_login_is_a_problem_with_a_remedy(
    port: int, login: str | None, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The right one is sent as PREFECT_API_AUTH_STRING says it, and the server tells its version (another one)."""
    monkeypatch.setattr(_Answers, "open", frozenset({"/api/health"}))
    monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
    if login is not None:
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", login)
    finding = _by_name(servers(tmp_path))["prefect"]
    assert finding.state == state
    assert ("PREFECT_API_AUTH_STRING" in finding.remedy) == (state == "problem")
    assert login is None or login.partition(":")[2] not in finding.model_dump_json()


def test_a_port_in_use_is_said_before_a_server_needs_it(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run could not start; the pages of MLflow could not be shown."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", str(port))
    monkeypatch.setenv("GRPO_MLFLOW_PORT", str(port))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    found = _by_name(servers(tmp_path))
    assert (found["prefect port"].state, found["mlflow port"].state) == ("problem", "warning")
    assert found["prefect port"].remedy == "set PREFECT_SERVER_API_PORT to a free port"


@pytest.mark.parametrize("healthy", [True, False], ids=["healthy", "a package is missing"])
def test_the_command_ends_with_what_it_found(tmp_path: Path, healthy: bool):
    """`--json` is one document; exit code 1 when a run would fail; nothing is left behind."""
    path = tmp_path / "path"
    path.mkdir()
    if not healthy:
        _installed(path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW"))}
    environment |= {"GRPO_HOME": str(tmp_path / "home"), "PREFECT_SERVER_API_PORT": str(port)}
    environment["PYTHONPATH"] = os.pathsep.join([str(path), str(ROOT)])
    command = [sys.executable, "-m", "flows.cli.app", "doctor", "--json", "--store", str(tmp_path / "store")]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    document = json.loads(done.stdout)
    assert document["schema_version"] == "1"
    problems = [finding["name"] for finding in document["findings"] if finding["state"] == "problem"]
    assert (done.returncode, problems) == ((0, []) if healthy else (1, ["rich", "no-such-package"]))
    areas = {finding["area"] for finding in document["findings"]}
    assert areas >= {"python", "packages", "machine", "stores", "servers", "capabilities"}
    assert sorted(found.name for found in tmp_path.iterdir()) == ["path"]


def test_files_that_a_wheel_does_not_hold_are_a_problem(tmp_path: Path):
    """Configs, scenarios, model, rubrics and network are looked for where the code looks for them."""
    assert {finding.state for finding in shipped()} == {"ok"}
    elsewhere = {name: tmp_path / path.relative_to(ROOT) for name, path in PARTS.items()}
    missing = list(shipped(elsewhere))
    assert {finding.state for finding in missing} == {"problem"}
    assert not DoctorReport(findings=tuple(missing)).healthy
    assert all("clone of the repository" in finding.remedy for finding in missing)


@pytest.mark.parametrize(
    ("changes", "state", "found"),
    [
        ((), "ok", "nothing that a run would refuse"),
        (("policy.model=Qwen/Qwen3-0.6B",), "problem", "no folder Qwen/Qwen3-0.6B"),
        (("policy.chat_template='{% for %}'",), "problem", "TemplateSyntaxError"),
        (("reward=[{kind: conciseness, weight: 1, options: {target: 20}}]",), "problem", "is fooled by"),
        (("scenarios.sources.0.path=nowhere.jsonl",), "problem", "nowhere.jsonl"),
        (("store=/proc/store",), "problem", "/proc/store"),
    ],
    ids=["quickstart", "hub", "template", "reward", "source", "store"],
)
def test_what_a_run_of_a_config_would_refuse_is_a_problem(
    changes: tuple[str, ...], state: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By the functions that the dry run calls; the store is not left behind."""
    monkeypatch.chdir(ROOT)
    config = load_config(ROOT / "data" / "configs" / "quickstart.yaml", (f"store={tmp_path / 'store'}", *changes))
    (finding,) = needs(config)
    assert (finding.state, found in finding.found) == (state, True), finding
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("port", ["abc", "0", "65536", "-1", "", "4200.0", "²"])
def test_a_setting_that_is_not_a_port_is_wrong_input(port: str, monkeypatch: pytest.MonkeyPatch):
    """The setting is named with its value and what is allowed."""
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", port)
    with pytest.raises(ConfigError, match=r"PREFECT_SERVER_API_PORT=.* is not a port; .* from 1 to 65535"):
        require(ports())


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
        self.wfile.write(b'"1.2.3"')

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def test_a_server_that_drops_one_connection_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A second try can help; a command does not end by one dropped connection."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _SecondTry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_address[1]}")
        require(named_servers())
        server.shutdown()
        thread.join()
    assert _SecondTry.dropped == 1
    with pytest.raises(ConnectionError, match=r"MLflow at http://127\.0\.0\.1:\d+ does not answer: .*; start it"):
        require(named_servers())
