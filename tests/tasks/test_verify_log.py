"""The check of a retraining and of `grpo verify-log`, on the log of a registered version."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from grpo.config.scenarios import ServedSource
from grpo.errors import RatioError
from grpo.log.folder import ServedLog
from grpo.log.writer import ServingLog
from grpo.serving.engine.registered import WatchedVersion
from grpo_cli.app import app
from grpo_cli.errors import FAILED
from grpo_tasks.registry import registry
from grpo_tasks.verify_log import verify_log
from tests.grpo.registry.test_served_agent import registered
from tests.grpo.serving.chat_servers import chat_server

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


@dataclass(frozen=True, kw_only=True)
class Served:
    """A registered version that has answered three turns; `wrong` is their log with the digest of other weights."""

    home: Path
    model: str

    def check(self, folder: str) -> int:
        """Turns that the stage has checked."""
        path = self.home / folder
        source = ServedSource(kind="served", path=str(path), segments=ServedLog(path).snapshot())
        result = verify_log.fn(sources=(source,), content="", model=self.model, seed=0, store=str(self.home / "store"))
        return result.check.turns

    def command(self, *arguments: str) -> Result:
        """Result of `grpo verify-log`."""
        return CliRunner().invoke(app, ["verify-log", f"models:/{self.model}/1", *arguments])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Served:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_HOME", str(home))  # whose key signs the version
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/mlflow.db")
        version = registered(home, tiny_folder, rollout={"max_new_tokens": 9})
        with chat_server(home, WatchedVersion(registry(), version.address)) as server:
            client = server.client()
            for content in ("Hello", "Where is my parcel?", "I want a refund."):
                client.chat.completions.create(
                    model=version.name, messages=[{"role": "user", "content": content}], temperature=1.0
                )
            turns = server.turns()

    async def claim_other_weights() -> None:
        async with ServingLog(home / "wrong") as log:
            for turn in turns:
                await log.append(replace(turn, policy_hash="0" * 16))

    asyncio.run(claim_other_weights())
    return Served(home=home, model=version.name)


@pytest.fixture(autouse=True)
def environment(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_HOME", str(served.home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{served.home}/mlflow.db")


def test_a_retraining_checks_the_turns_of_its_model(served: Served):
    assert served.check("log") == 3


def test_a_retraining_refuses_turns_of_other_weights(served: Served):
    with pytest.raises(RatioError, match=f"claims {served.model}/1, and has weights 0000"):
        served.check("wrong")


def test_the_command_prints_the_difference_or_the_turn_of_other_weights(served: Served):
    """All of three turns; the exit code is that of a failure for the wrong ones."""
    right = served.command("--log", str(served.home / "log"))
    assert right.exit_code == 0, right.output
    assert right.stdout.startswith("3 turns with ")
    some = served.command("--log", str(served.home / "log"), "--turns", "2")
    assert some.stdout.startswith("2 turns with ")
    wrong = served.command("--log", str(served.home / "wrong"))
    assert wrong.exit_code == FAILED, wrong.output
    assert f"claims {served.model}/1" in wrong.output
