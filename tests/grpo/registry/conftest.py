from __future__ import annotations

import pytest

from grpo.registry import Registry


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """A real SQLite store; tests use models of different names in it."""
    folder = tmp_path_factory.mktemp("mlflow")
    return Registry(f"sqlite:///{folder}/mlflow.db", artifact_root=f"file://{folder}/artifacts")
