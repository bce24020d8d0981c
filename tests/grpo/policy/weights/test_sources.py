"""One grammar of model addresses: folders, the hub, GGUF, the registry, adapters with their base."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PolicySettings
from grpo.errors import AddressError, ConfigError, PolicyError
from grpo.policy.catalog import load_weights, open_policy, pinned
from grpo.policy.policy import Policy
from grpo.policy.transformers.adapters import has_adapters
from grpo.policy.transformers.model import load
from grpo.policy.weights import sources
from grpo.policy.weights.registered import signed_tags
from grpo.policy.weights.sources import model_description, model_files, model_identity, model_plan
from grpo.registry import Registry
from grpo.storage.databases import make_tracking
from grpo_tasks.load_base import load_base
from tests.gguf_files import write_gguf
from tests.grpo.registry.making import put_into_service
from tests.hub_server import Hub, hub_server
from tests.hub_server import model_files as files_of
from tests.places import DESK_MODEL
from tests.tasks.adapted import put_adapted

pytestmark = pytest.mark.filterwarnings("ignore")

NAME = "acme/desk"


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> Iterator[Hub]:
    """A hub with the tiny model."""
    with hub_server(monkeypatch, tmp_path / "cache") as running:
        running.add(NAME, files_of(tiny_folder))
        yield running


def _logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(torch.tensor([[5, 6, 7]])).logits  # type: ignore[attr-defined]


def test_a_model_on_the_hub_is_the_model(hub: Hub, tiny_folder: Path):
    """The weights of the folder that was uploaded."""
    assert open_policy(NAME).hash == load(tiny_folder).hash


def test_an_address_is_pinned_to_the_commit_and_to_the_content(hub: Hub, tiny_folder: Path):
    """The identity of a branch is that of its commit, and changes with it, without the weights being fetched."""
    commit = hub.repos[NAME].branches["main"]
    assert pinned(NAME) == pinned(f"{NAME}@main") == f"{NAME}@{commit}"
    assert pinned(f"vllm://{NAME}") == f"vllm://{NAME}@{commit}"
    assert pinned("openai+http://host/v1#m") == "openai+http://host/v1#m"
    assert pinned(str(tiny_folder)) == str(tiny_folder)
    before = model_identity(NAME)
    assert before == model_identity(f"{NAME}@{commit}")
    hub.repos[NAME].commit({**files_of(tiny_folder), "generation_config.json": b'{"eos_token_id": 7}'})
    assert model_identity(NAME) != before == model_identity(f"{NAME}@{commit}")
    assert "model.safetensors" not in hub.fetched()


def test_a_base_of_a_commit_is_stored_once(hub: Hub, tmp_path: Path, tiny_folder: Path):
    """Of the address with its commit; its checkpoint has the weights."""
    settings = PolicySettings(model=pinned(NAME))
    store = str(tmp_path / "store")
    first = load_base.fn(policy=settings, content=model_identity(settings.model), store=store)
    again = load_base.fn(policy=settings, content=model_identity(settings.model), store=store)
    assert again.checkpoint == first.checkpoint
    assert first.policy == load(tiny_folder).hash
    assert hub.fetched().count("model.safetensors") == 1


def test_a_gguf_file_is_a_model_to_generate_and_to_train(tmp_path: Path):
    """By its file and by its folder; its description and identity convert nothing."""
    (tmp_path / "smol").mkdir()
    write_gguf(DESK_MODEL, tmp_path / "smol" / "desk.F32.gguf")
    with model_description("smol/desk.F32.gguf") as described:
        assert json.loads((described.config / "config.json").read_text())["model_type"] == "llama"
    assert model_identity("smol") == model_identity("smol/desk.F32.gguf") != model_identity(str(DESK_MODEL))
    assert model_plan("smol").size == (tmp_path / "smol" / "desk.F32.gguf").stat().st_size
    assert not (tmp_path / "home").exists()
    assert open_policy("smol").hash == load(DESK_MODEL).hash
    base = load_base.fn(policy=PolicySettings(model="smol"), content="", store=str(tmp_path / "store"))
    assert base.policy == load(DESK_MODEL).hash


def _adapters(tmp_path: Path, tiny_folder: Path, base: object) -> Path:
    """Adapters as a trainer leaves them, for a base of this name."""
    store = ArtifactStore(str(tmp_path / "made"))
    under = load_base.fn(policy=PolicySettings(model=str(tiny_folder)), content="", store=store.root).checkpoint
    artifact, _ = put_adapted(store, tiny_folder, under)
    folder = tmp_path / "adapters"
    shutil.copytree(store.path(artifact), folder)
    (folder / "learner.json").unlink()
    (folder / "manifest.json").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": base}))
    return folder


DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        (
            {"uri": "http://127.0.0.1:9/s/checkpoint/x", "sha256": DIGEST, "kind": "checkpoint"},
            "a base in another store",
        ),
        ({"uri": "s3://other/checkpoint/0000", "sha256": DIGEST, "kind": "checkpoint"}, "in another store"),
        ({"uri": "/s/checkpoint/x", "sha256": "../../victim/x", "kind": "checkpoint"}, "names no base: .*sha256"),
        ({"uri": "/s/checkpoint/x", "sha256": DIGEST, "kind": "../victim"}, "names no base: .*kind"),
        (7, "names no base"),
    ],
    ids=["another host", "another bucket", "digest that is a path", "kind that is a path", "number"],
)
def test_a_strangers_checkpoint_names_no_other_place(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, base: object, reason: str
):
    """No address is opened and no folder is made, because the file may come from anybody."""
    folder = _adapters(tmp_path, tiny_folder, "x")
    (folder / "learner.json").write_text(json.dumps({"base": base}))
    monkeypatch.setattr(sources, "artifact_path", lambda artifact: pytest.fail("an artifact was opened"))
    with pytest.raises(PolicyError, match=reason):
        model_identity(str(folder))
    with pytest.raises(PolicyError, match=reason), model_description(str(folder)):
        pass
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("own_tokenizer", [True, False])
def test_adapters_find_the_base_that_they_name(hub: Hub, tmp_path: Path, tiny_folder: Path, own_tokenizer: bool):
    """On the hub or in a folder; a run starts from the merged weights, which compute the same."""
    folder = _adapters(tmp_path, tiny_folder, NAME)
    if not own_tokenizer:
        for path in (*folder.glob("tokenizer*"), *folder.glob("chat_template*")):
            path.unlink()
    policy = load_weights("adapters")
    assert has_adapters(policy.model)
    assert (_logits(policy) - _logits(load(tiny_folder))).abs().max() > 1e-3
    store = str(tmp_path / "store")
    base = load_base.fn(policy=PolicySettings(model="adapters"), content="", store=store)
    merged = load(ArtifactStore(store).path(base.checkpoint))
    assert not has_adapters(merged.model)
    torch.testing.assert_close(_logits(merged), _logits(policy), atol=1e-5, rtol=0)
    hub.add("acme/adapters", files_of(folder))
    torch.testing.assert_close(_logits(open_policy("acme/adapters")), _logits(policy))
    with model_description("acme/adapters") as described:
        assert (described.config / "config.json").is_file()
        assert (described.tokenizer / "tokenizer.json").is_file()


def test_the_identity_of_adapters_is_theirs_and_their_bases(tmp_path: Path, tiny_folder: Path):
    """Another base under the same name is another model."""
    shutil.copytree(tiny_folder, tmp_path / "base")
    _adapters(tmp_path, tiny_folder, "base")
    before = model_identity("adapters")
    assert model_identity("adapters") == before
    (tmp_path / "base" / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert model_identity("adapters") != before


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        (
            "nowhere/near/it",
            "holds adapters for nowhere/near/it, and no model in .*. Correct base_model_name_or_path in",
        ),
        (None, "which is neither a folder nor a model on a hub"),
        ("s3://bucket/model", "which is neither a folder nor a model on a hub"),
        ("models:/desk@champion", "which is neither a folder nor a model on a hub"),
        ("adapters", "which holds adapters too. Merge these"),
    ],
)
def test_adapters_without_their_base_say_what_to_set(tmp_path: Path, tiny_folder: Path, base: object, reason: str):
    """In their own file."""
    _adapters(tmp_path, tiny_folder, base)
    with pytest.raises(PolicyError, match=reason):
        model_files("adapters")


def test_a_registered_version_is_a_model(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """By alias, which is pinned to its number; the checkpoint is read, and adapters with their base."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    make_tracking(uri)
    store = ArtifactStore(str(tmp_path / "store"))
    under = load_base.fn(policy=PolicySettings(model=str(tiny_folder)), content="", store=store.root).checkpoint
    adapted, policy = put_adapted(store, tiny_folder, under)
    client = Registry(uri).client
    client.create_registered_model("desk")
    for checkpoint in (under, adapted):
        tags = {"checkpoint_uri": checkpoint.uri, "checkpoint_sha256": checkpoint.sha256}
        signed = signed_tags("desk", run_id="", tags=tags)
        client.create_model_version("desk", source=str(tmp_path), tags=signed)
    put_into_service(Registry(uri), "desk", 2)
    assert pinned("models:/desk@champion") == "models:/desk/2"
    assert (
        model_identity("models:/desk@champion") == model_identity("models:/desk/2") != model_identity("models:/desk/1")
    )
    assert open_policy("models:/desk/1").hash == load(tiny_folder).hash
    torch.testing.assert_close(_logits(open_policy("models:/desk@champion")), _logits(policy))
    with pytest.raises(AddressError, match="no model at models:/desk/3 in the registry"):
        open_policy("models:/desk/3")


def test_an_object_needs_its_digest(tmp_path: Path):
    """As everywhere where an artifact is named."""
    with pytest.raises(ConfigError, match="is not the address of an artifact"):
        open_policy("s3://bucket/model")
