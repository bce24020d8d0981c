"""Registered versions behind a real server, from a real MLflow store."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from mlflow import MlflowClient

from grpo.environments.support_desk.desk import SupportDesk
from grpo.errors import AddressError, RegistryError, SignatureError
from grpo.messages import Message
from grpo.policy.renderer import make_renderer
from grpo.policy.tokenizer import load_tokenizer
from grpo.registry import ModelVersion, Registry
from grpo.serving.engine.registered import WatchedVersion, fixed_model
from grpo_tasks.registry import registry
from tests import waiting
from tests.grpo.registry.making import ANNA, put_into_service
from tests.grpo.registry.test_served_agent import registered
from tests.grpo.serving.chat_servers import CLERK, ChatServer, chat_server

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals
QUESTION = "Where is my parcel?"
PLANTED = """
from pathlib import Path
from grpo import MultiTurnAgent

Path({ran!r}).write_text("in the server")

class Planted(MultiTurnAgent):
    pass
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an empty registry."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return tmp_path


def test_a_champion_reads_what_it_read_in_rollouts_and_its_successor_takes_over(home: Path, tiny_folder: Path):
    """The prompt of the first turn is that of the environment, its tools and the user; then the alias moves."""
    first = registered(home, tiny_folder, rollout={"max_new_tokens": 9})
    models = registry()
    put_into_service(models, first.name, first.version)
    address = f"models:/{first.name}@champion"
    with chat_server(home, WatchedVersion(models, address)) as server:
        client = server.client()
        reply = client.chat.completions.create(model=first.name, messages=[{"role": "user", "content": QUESTION}])
        (turn,) = server.turns()
        version = server.service.versions.current
        assert version is not None
        renderer = make_renderer(version.served.policy.tokenizer, tools=SupportDesk.tools)  # type: ignore[attr-defined]
        prompt = renderer.build_prompt(
            [Message(role="system", content=SupportDesk.system_prompt), Message(role="user", content=QUESTION)]
        )
        assert turn.token_ids.tolist()[: len(prompt)] == prompt
        assert turn.model == f"{first.name}/{first.version}"
        assert reply.usage is not None
        assert reply.usage.completion_tokens <= 9
        second = registered(home, CLERK, run_key="another")
        assert second.version > first.version
        put_into_service(models, first.name, second.version)
        waiting.until("the new version", lambda: server.service.versions.swaps, patience_s=240)
        client.chat.completions.create(model=first.name, messages=[{"role": "user", "content": QUESTION}])
        assert server.turns()[-1].model == f"{first.name}/{second.version}"


def _alias_told(server: ChatServer, *, gone: bool = False) -> str:
    """What `/ready` says of the alias, as soon as it says something, or nothing any more."""
    for _ in range(3000):
        body = httpx.get(f"{server.url}/ready", timeout=60).raise_for_status().json()
        if ("alias" not in body) is gone:
            return str(body.get("alias", ""))
        server.wait(0.01)
    pytest.fail(f"the alias in /ready did not change: {body}")


def _moved(server: ChatServer) -> float:
    values = httpx.get(f"{server.url}/v1/metrics", headers=server.headers(), timeout=60).raise_for_status().json()
    return float(values["grpo_champion_moved_by_hand"])


def test_who_writes_to_mlflow_runs_no_code_in_the_server(home: Path, tiny_folder: Path, tmp_path: Path):
    """The attack on a server that watches the champion, with MLflow's own client and a colleague's login.

    A module is uploaded, and an `MLmodel` that names it as the agent, with the artifact's folder to import from and no
    digests of modules; the version has all tags of the champion, and then the alias. The module must not run, the
    server goes on, and says why in one line.
    """
    models, first = registry(), registered(home, tiny_folder)
    put_into_service(models, first.name, first.version)
    address = f"models:/{first.name}@champion"
    with chat_server(home, WatchedVersion(models, address)) as server:
        mlflow = MlflowClient(models.tracking_uri)
        ran = tmp_path / "planted-module-ran"
        run = mlflow.create_run(models.experiment("grpo"))
        with models.model_folder(first) as files:
            shutil.copytree(files, tmp_path / "upload")
        (tmp_path / "upload" / "planted.py").write_text(PLANTED.format(ran=str(ran)))
        mlflow.log_artifacts(run.info.run_id, str(tmp_path / "upload"), "policy")
        folder = Path(mlflow.get_run(run.info.run_id).info.artifact_uri.removeprefix("file://")) / "policy"
        document = yaml.safe_load((folder / "MLmodel").read_text())
        provenance = document["metadata"]["provenance"]
        provenance["config"] |= {"import_from": str(folder)}
        provenance["config"]["agent"] |= {"kind": "python", "object": "planted:Planted", "options": {}}
        provenance["agent"] |= {"modules": {}}
        (tmp_path / "upload" / "MLmodel").write_text(yaml.safe_dump(document))
        mlflow.log_artifact(run.info.run_id, str(tmp_path / "upload" / "MLmodel"), "policy")
        tags = mlflow.get_model_version(first.name, str(first.version)).tags
        planted = mlflow.create_model_version(first.name, source=folder.as_uri(), run_id=run.info.run_id, tags=tags)
        mlflow.set_registered_model_alias(first.name, "champion", planted.version)
        told = _alias_told(server)
        assert told.startswith(
            f"the alias champion of {first.name} was moved by hand to version {planted.version}. Version "
            f"{first.version} was promoted: "
        )
        assert "\n" not in told
        reply = server.client().chat.completions.create(
            model=first.name, messages=[{"role": "user", "content": QUESTION}]
        )
        assert reply.choices[0].message.role == "assistant"
        assert server.turns()[-1].model == f"{first.name}/{first.version}"
        assert _moved(server) == 1.0
        put_into_service(models, first.name, first.version)
        assert _alias_told(server, gone=True) == ""
        assert _moved(server) == 0.0
    assert not ran.exists()
    assert "planted" not in sys.modules
    assert str(folder) not in sys.path


def test_a_server_that_follows_the_alias_serves_signed_versions_only(home: Path, tiny_folder: Path):
    """`--follow-alias` is for an alias that is moved on purpose; an unsigned version is refused."""
    models, first = registry(), registered(home, tiny_folder)
    put_into_service(models, first.name, first.version)
    source = WatchedVersion(models, f"models:/{first.name}@champion", follow_alias=True)
    unsigned = models.client.create_model_version(first.name, source=first.source, tags={"verdict": "promote"})
    models.client.set_registered_model_alias(first.name, "champion", unsigned.version)
    with pytest.raises(SignatureError, match=f"models:/{first.name}/{unsigned.version} is not signed"):
        source("")
    tags = models.client.get_model_version(first.name, str(first.version)).tags
    copy = models.client.create_model_version(first.name, source=first.source, run_id=first.run_id, tags=tags)
    models.client.set_registered_model_alias(first.name, "champion", copy.version)
    served = source("")
    assert served is not None
    assert served.version == f"{first.name}/{copy.version}"
    assert source.moved is not None
    assert f"was moved by hand to version {copy.version}" in source.moved


def test_a_server_logs_that_the_champion_was_deleted(home: Path, tiny_folder: Path, caplog: pytest.LogCaptureFixture):
    """MLflow removes its alias too. Then the alias is moved by hand to another version, which is logged as well."""
    models, first = registry(), registered(home, tiny_folder)
    put_into_service(models, first.name, first.version)
    source = WatchedVersion(models, f"models:/{first.name}@champion")
    current = f"{first.name}/{first.version}"
    assert source(current) is None
    models.client.delete_model_version(first.name, str(first.version))
    with caplog.at_level("INFO"), pytest.raises(RegistryError, match="because the version was deleted"):
        source(current)
    deleted = f"version {first.version} of {first.name}, the champion, was deleted"
    assert {message for message in caplog.messages if first.name in message} == {deleted}
    other = models.client.create_model_version(first.name, source=first.source)
    models.client.set_registered_model_alias(first.name, "champion", other.version)
    with pytest.raises(RegistryError, match="because the version was deleted"):
        source(current)
    assert f"was moved by hand to version {other.version}, and the version that was promoted was deleted" in caplog.text


def _two_promoted(home: Path, tiny_folder: Path) -> tuple[Registry, ModelVersion, WatchedVersion]:
    """A model with two promoted versions of the same files, and a look-up of its champion."""
    models, first = registry(), registered(home, tiny_folder)
    tags = models.client.get_model_version(first.name, str(first.version)).tags
    models.client.create_model_version(first.name, source=first.source, run_id=first.run_id, tags=tags)
    for version in (1, 2):
        put_into_service(models, first.name, version)
    return models, first, WatchedVersion(models, f"models:/{first.name}@champion")


def test_a_look_up_notices_that_the_champion_was_replaced(home: Path, tiny_folder: Path):
    """By a rollback after the champion was deleted. A deleted champion by itself is no other version to load."""
    models, first, source = _two_promoted(home, tiny_folder)
    assert source(f"{first.name}/2") is None
    assert not source.is_changed()
    models.client.delete_model_version(first.name, "2")
    with pytest.raises(RegistryError, match="because the version was deleted"):
        source(f"{first.name}/2")
    assert not source.is_changed()
    models.promotions(first.name).rollback(reason="it was deleted", by=ANNA)
    assert source.is_changed()


def test_a_server_notices_that_the_last_promotion_was_removed(home: Path, tiny_folder: Path):
    """After a rollback somebody removes its record and moves the alias back: the version before stays out."""
    models, first, source = _two_promoted(home, tiny_folder)
    models.promotions(first.name).rollback(reason="refunds twice", by=ANNA)
    served = source("")
    assert served is not None
    assert served.version == f"{first.name}/1"
    models.client.delete_registered_model_tag(first.name, "promotion.0003")
    models.client.set_registered_model_alias(first.name, "champion", "2")
    with pytest.raises(SignatureError, match=r"the record promotion.0003 of model \S+ was removed or changed"):
        source(served.version)


def test_a_version_is_loaded_once(home: Path, tiny_folder: Path):
    version = registered(home, tiny_folder)
    following = WatchedVersion(registry(), version.address)
    served = following("")
    assert served is not None
    assert following(served.version) is None
    with pytest.raises(AddressError, match="no model at"):
        WatchedVersion(registry(), f"models:/{version.name}@champion")("")


def test_a_model_folder_is_served_as_it_is():
    following = fixed_model(str(CLERK), "clerk")
    served = following("")
    assert served is not None
    assert (served.version, served.tools, served.system_prompt) == ("clerk", (), "")
    assert following("clerk") is None


def test_the_server_itself_needs_no_pytorch(tmp_path: Path):
    """It is imported by the engine processes, which have the models: a server takes a third of the memory."""
    script = (
        "import sys\n"
        "import grpo.serving.server, grpo.serving.mirror.mirror, grpo_local.training_jobs, grpo_tasks.registry\n"
        "from grpo.serving.engine.registered import fixed_model\n"
        "served = fixed_model(sys.argv[1], 'clerk')('')\n"
        "print(served.policy.tokenizer.vocab_size, 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(CLERK)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(load_tokenizer(CLERK).vocab_size), "False"]
