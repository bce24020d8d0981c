"""Starts of Prefect's server for a command: during its check, and with types of blocks only for the pages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient

from grpo.errors import ConfigError
from grpo.preflight.table import Depth
from grpo_local.managed_process import free_port
from grpo_local.servers import prefect_server, prefect_service

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A server of the test's own home."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("PREFECT_SERVER_API_HOST", "127.0.0.1")
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", str(free_port()))


@pytest.mark.parametrize("refused", ["files", "all"])
def test_a_refused_config_stops_the_server_that_was_starting(tmp_path: Path, refused: Depth):
    """The check runs while the server has a process, without its address, because it does not answer yet."""
    seen = []

    def check(depth: Depth) -> None:
        seen.append((depth, prefect_service(tmp_path).process() is not None, os.environ.get("PREFECT_API_URL")))
        if depth == refused:
            raise ConfigError("refused")

    with pytest.raises(ConfigError, match="refused"), prefect_server(tmp_path, check=check):
        raise AssertionError("the block does not begin")
    assert seen == [(depth, True, None) for depth in ("files", "all")[: 1 + (refused == "all")]]
    assert prefect_service(tmp_path).process() is None


def test_only_a_server_for_the_pages_writes_types_of_blocks(tmp_path: Path):
    """A run's server does not, and the next one for the pages does, although the home is no longer new."""
    types = []
    for for_pages in (False, True):
        with prefect_server(tmp_path, for_pages=for_pages) as url:
            login = os.environ["PREFECT_API_AUTH_STRING"]
            with SyncPrefectClient(url, auth_string=login) as client:
                types.append({block.slug for block in client.read_block_types()})
    assert types[0] == set()
    assert "slack-webhook" in types[1]
