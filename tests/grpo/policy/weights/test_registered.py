"""The registry that a process uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.errors import ConfigError
from grpo.policy.weights.registered import open_client


@pytest.mark.parametrize("name", ["MLFLOW_REGISTRY_URI", "MLFLOW_REGISTRY_STORE_URI"])
def test_versions_are_looked_up_where_their_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """With versions elsewhere, the files of this registry would seem to belong to none, and would be removed."""
    uri, other = (f"sqlite:///{tmp_path}/{file}.db" for file in ("own", "other"))
    monkeypatch.setenv(name, other)
    with pytest.raises(ConfigError, match=f"{name} is {other}, and the versions of this project are in .*{uri}"):
        open_client(uri)
    assert not (tmp_path / "other.db").exists()
    monkeypatch.setenv(name, uri)
    open_client(uri).create_registered_model("desk")
    monkeypatch.delenv(name)
    assert open_client(uri).get_registered_model("desk").name == "desk"
