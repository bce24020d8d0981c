"""Fixtures of several modules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.grpo.serving.chat_servers import ChatServer, chat_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    """A server of the embedded clerk, with a home and a registry of its own. Some modules replace it by another one."""
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:  # an erasure reads every run of the registry
        patch.setenv("GRPO_HOME", str(folder))
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        with chat_server(folder) as running:
            yield running
