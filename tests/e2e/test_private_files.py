"""Files of a home after a real run and a real server: none of them can be read by others."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import httpx
import pytest
import yaml

from grpo.serving.access.keys import KeyStore
from tests import waiting
from tests.e2e.commands import start
from tests.e2e.served import own_environment
from tests.ports import own_port


def open_to_others(folder: Path) -> list[str]:
    """Files and folders with rights for group or others."""
    paths = (folder, *folder.rglob("*"))
    return [str(path) for path in paths if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077]


@pytest.mark.e2e
@pytest.mark.usefixtures("server")
def test_no_file_of_a_home_can_be_read_by_others(desk_config: dict[str, object], tmp_path: Path, server: str):
    """Artifacts, reports, databases, registered models, the serving log and budgets, under the most open umask."""
    home, config = tmp_path / "home", tmp_path / "run.yaml"
    plan = {**desk_config, "store": str(home / "artifacts"), "training": {"iterations": 1, "learning_rate": 3e-4}}
    config.write_text(yaml.safe_dump(plan))
    environment, before = own_environment(home, server), os.umask(0)
    try:
        code, printed = start("train", str(config), environment=environment, output=tmp_path / "train.txt").end()
        assert code in (0, 3), printed
        secret, port = KeyStore(home / "keys.json").create("shop", ("chat", "feedback")), own_port()
        model = f"models:/{desk_config['registry']['model_name']}/1"  # type: ignore[index]
        serving = start("serve", model, "--port", str(port), environment=environment, output=tmp_path / "serve.txt")
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {secret}"}, timeout=60
        ) as web:

            def ready() -> bool:
                assert serving.process.is_alive(), (tmp_path / "serve.txt").read_text()
                try:
                    return web.get("/ready").status_code == 200
                except httpx.TransportError:
                    return False

            waiting.until("the model", ready, patience_s=180)
            body = {"model": str(desk_config["registry"]["model_name"]), "max_tokens": 2}  # type: ignore[index]
            asked = {**body, "messages": [{"role": "user", "content": "Hello"}]}
            reply = web.post("/v1/chat/completions", json=asked).raise_for_status().json()
            web.post("/v1/feedback", json={"conversation_id": reply["conversation_id"], "rating": 1}).raise_for_status()
        os.kill(serving.process.pid or 0, signal.SIGTERM)
        serving.process.join(240)
    finally:
        os.umask(before)
    made = {path.relative_to(home).parts[0] for path in home.iterdir()}
    assert {"artifacts", "mlflow.db", "short", "served", "budgets.db", "keys.json", "mlartifacts"} <= made
    assert open_to_others(home) == []
