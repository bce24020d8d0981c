"""The server of a model in the stack: kept alive, and drained at its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from grpo.errors import ConfigError
from grpo.serving.access.keys import KeyStore
from grpo_cli.serve import serve_config
from grpo_local import settings
from grpo_local.managed_process import ManagedProcess
from grpo_local.serving import start_serving, stop_serving, supervised_server
from grpo_local.stack import running_services
from grpo_local.supervisor import restart_if_dead
from tests.grpo.serving.test_server import self_signed
from tests.places import DESK_MODEL, ROOT
from tests.ports import own_port

pytestmark = pytest.mark.e2e


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of the records of a home of its own, with a free port for the server."""
    for name, value in {**settings.offline_variables(), **settings.home_variables(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("GRPO_SERVE_PORT", str(own_port()))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'flows'}:{ROOT / 'tasks'}")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def key(tmp_path: Path) -> str:
    return KeyStore(tmp_path / "keys.json").create("shop", ("chat",))


@pytest.fixture
def ended(tmp_path: Path, tracking: str) -> Iterator[None]:
    yield
    stop_serving(tmp_path)


def wait_until_ready(address: str) -> None:
    while httpx.get(f"{address}/ready", timeout=60, verify=False).status_code != 200:
        threading.Event().wait(0.1)


def server_of(home: Path, tracking: str) -> ManagedProcess:
    server = supervised_server(home, prefect_url="", mlflow_url=tracking)
    assert server is not None
    return server


@pytest.mark.usefixtures("ended")
def test_a_served_model_is_started_again_and_ends_its_turns_before_it_stops(tmp_path: Path, tracking: str, key: str):
    """Killed, it is back at the same address; a stream that runs when it is stopped is whole, then it is not back.

    It is served with TLS and in a folder of its own, both before and after the kill.
    """
    certificate, private_key = self_signed(tmp_path)
    tls = [f"tls.certificate={certificate}", f"tls.private_key={private_key}"]
    served = serve_config(str(DESK_MODEL), [*tls, f"log={tmp_path / 'talks'}"])
    address = start_serving(tmp_path, served, prefect_url="", mlflow_url=tracking)
    assert httpx.get(f"{address}/ready", timeout=60, verify=False).status_code == 200
    with pytest.raises(ConfigError, match=r"desk_clerk is served already, with other settings \(.*\)\. Call grpo down"):
        start_serving(tmp_path, serve_config("other", None), prefect_url="", mlflow_url=tracking)
    server = server_of(tmp_path, tracking)
    first = server.process()
    assert first is not None
    first.kill()
    psutil.wait_procs([first], timeout=240)
    restart_if_dead(server, wait=True)
    assert server.process() not in (None, first)
    assert (server.address(), running_services(tmp_path)["serve"], address[:8]) == (address, True, "https://")
    wait_until_ready(address)
    body = {"model": DESK_MODEL.name, "messages": [{"role": "user", "content": "Hello"}], "stream": True, "n": 16}
    request = httpx.stream(
        "POST",
        f"{address}/v1/chat/completions",
        json={**body, "max_tokens": 200},
        headers={"Authorization": f"Bearer {key}"},
        timeout=240,
        verify=False,
    )
    with request as response:
        lines = response.iter_lines()
        next(lines)
        stopping = threading.Thread(target=stop_serving, args=(tmp_path,))
        stopping.start()
        assert [line for line in lines if line][-1] == "data: [DONE]"
    stopping.join()
    assert server.process() is None
    assert supervised_server(tmp_path, prefect_url="", mlflow_url=tracking) is None
    assert "serve" not in running_services(tmp_path)
    assert list((tmp_path / "talks").iterdir())


def test_a_server_that_ends_at_its_start_is_not_kept_alive(tmp_path: Path, tracking: str):
    """Without keys: the error has the last line of the log, with the remedy."""
    with pytest.raises(ConfigError, match=r"serve ended at its start: ConfigError: there are no API keys.*serve\.log"):
        start_serving(tmp_path, serve_config(str(DESK_MODEL), None), prefect_url="", mlflow_url=tracking)
    assert supervised_server(tmp_path, prefect_url="", mlflow_url=tracking) is None
