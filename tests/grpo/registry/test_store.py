from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.artifacts import ArtifactStore
from grpo.errors import AddressError, ArtifactError, RegistryError, StorageError
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.registry import ModelVersion, Registry
from grpo.registry.chat_model import requirements
from tests.doubles import put_file
from tests.grpo.registry.making import ANNA, make_provenance, put_version, serving
from tests.grpo.registry.test_promotions import Dying, Killed
from tests.places import ROOT


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def _register(registry: Registry, policy: TransformersPolicy, key: str, *, model: str = "desk") -> ModelVersion:
    run_id = registry.open_run("tests", "run", run_key=key, params={"training.iterations": "2"})
    tags = {"run_key": key, "verdict": "promote", "checkpoint_uri": "store/x", "checkpoint_sha256": "ab"}
    return registry.register(model, run_id, policy, tags=tags, provenance=make_provenance(seed=11))


pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


def test_the_champion_is_the_version_that_was_promoted(registry: Registry, policy: TransformersPolicy):
    """None before, version 1 after; the newest version is the candidate."""
    assert registry.champion("desk") is None
    first = _register(registry, policy, "k1")
    second = _register(registry, policy, "k2")
    registry.promotions("desk").promote(first.version, reason="gates", by=ANNA)
    serving = registry.champion("desk")
    assert serving is not None
    assert (serving.version, serving.checkpoint.sha256) == (first.version, "ab")
    assert registry.resolve("models:/desk@candidate") == second
    assert registry.resolve(f"models:/desk/{first.version}") == first
    assert registry.aliases(first) == ["champion"]


@pytest.mark.parametrize("address", ["models:/desk@unknown", "models:/desk/99", "models:/unknown@champion", "desk"])
def test_an_unknown_model_address_is_an_error(registry: Registry, policy: TransformersPolicy, address: str):
    """It is named."""
    _register(registry, policy, "k1")
    with pytest.raises(AddressError, match=address):
        registry.resolve(address)


def _model_files(registry: Registry, version: ModelVersion) -> Path:
    with registry.model_folder(version) as folder:
        return folder


def test_a_registered_model_is_verified_by_its_digest(registry: Registry, policy: TransformersPolicy):
    """One changed byte of its weights, one file more: an error with the place; as it was, it is sound again."""
    version = _register(registry, policy, "digest", model="digested")
    folder = _model_files(registry, version)
    (weights,) = folder.rglob("*.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArtifactError, match=rf"digested version 1 in {folder} is damaged"):
        registry.verify(version)
    weights.write_bytes(content)
    registry.verify(version)
    (folder / "extra.py").write_text("")
    with pytest.raises(ArtifactError, match="is damaged"):
        registry.verify(version)
    (folder / "extra.py").unlink()


def test_the_checkpoint_that_is_served_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A rollback would put a version into service that no server can load. A store of another machine is not here."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    store = ArtifactStore(str(tmp_path / "store"))
    checkpoint = put_file(store, "checkpoint", ".safetensors", lambda path: path.write_bytes(b"weights"))
    tags = {"checkpoint_uri": checkpoint.uri, "checkpoint_sha256": checkpoint.sha256}
    version = ModelVersion(name="served", version=1, run_id="r", source="file:///nowhere", tags=tags)
    version.verify_checkpoint()
    Path(checkpoint.uri).chmod(0o600)
    Path(checkpoint.uri).write_bytes(b"weightz")
    with pytest.raises(ArtifactError, match="damaged"):
        version.verify_checkpoint()
    Path(checkpoint.uri).unlink()
    with pytest.raises(ArtifactError):
        version.verify_checkpoint()
    shutil.rmtree(tmp_path / "store")
    version.verify_checkpoint()


def test_a_damaged_version_is_not_promoted(registry: Registry, policy: TransformersPolicy):
    """Neither by a promotion nor by a rollback; the one in service stays."""
    first, second = (_register(registry, policy, f"sound-{k}", model="sound") for k in (1, 2))
    line = registry.promotions("sound")

    def verify(number: int) -> None:
        registry.verify(registry.resolve(f"models:/sound/{number}"))

    line.promote(first.version, reason="gates", by=ANNA, verify=verify)
    config = _model_files(registry, second) / "MLmodel"
    config.write_text(config.read_text() + "#")
    with pytest.raises(ArtifactError, match="sound version 2"):
        line.promote(second.version, reason="gates", by=ANNA, force=True, verify=verify)
    assert serving(registry, "sound") == (1, None)
    line.promote(second.version, reason="gates", by=ANNA, force=True)
    config = _model_files(registry, first) / "MLmodel"
    config.write_text(config.read_text() + "#")
    with pytest.raises(ArtifactError, match="sound version 1"):
        line.rollback(reason="refunds", by=ANNA, verify=verify)
    assert serving(registry, "sound") == (2, 1)


def test_a_version_without_a_digest_is_refused(registry: Registry):
    """A version that was registered by other code cannot be verified."""
    put_version(registry, "foreign", "a", against="base")
    with pytest.raises(AddressError, match="foreign version 1 has no tag model_sha256"):
        registry.verify(registry.resolve("models:/foreign/1"))


_KILLED = """
import os, signal, sys, tempfile
import mlflow.transformers
from pathlib import Path
from grpo.policy.transformers.model import load
from grpo.registry import Registry
from tests.grpo.registry.test_store import _register

def log_model(**_):
    Path(tempfile.mkdtemp(), "model.safetensors").write_bytes(b"copy")
    os.kill(os.getpid(), signal.SIGKILL)

mlflow.transformers.log_model = log_model
_register(Registry(sys.argv[1]), load(Path(sys.argv[2])), "swept", model="swept")
"""


def test_the_copy_of_a_killed_registration_is_removed_by_the_next(
    registry: Registry,
    policy: TransformersPolicy,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """A whole model in the folder for temporary files, until another registration comes."""
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, registry.tracking_uri, str(tiny_folder)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert [path.name for path in tmp_path.rglob("*.safetensors")] == ["model.safetensors"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _register(registry, policy, "swept", model="swept")
    assert list(tmp_path.rglob("*.safetensors")) == []
    assert registry.find("swept", "swept") is not None


def test_a_deleted_champion_is_not_a_model_without_one(registry: Registry):
    """Otherwise the next candidate would be evaluated against the base; before the first promotion it is None."""
    version = put_version(registry, "gone", "a", against="base")
    assert registry.champion("gone") is None
    registry.promotions("gone").promote(version, reason="gates", by=ANNA)
    registry.client.delete_model_version("gone", str(version))
    with pytest.raises(RegistryError, match="had a champion and has none now, because the version was deleted"):
        registry.champion("gone")


def test_an_unreachable_registry_is_not_one_without_a_champion(tmp_path: Path):
    """Else a candidate would be judged against the base while the champion's server is away."""
    from mlflow.exceptions import MlflowException

    class Away:
        def get_registered_model(self, model: str) -> object:
            raise MlflowException("the database is locked")

    with pytest.raises(MlflowException, match="locked"):
        Registry(f"sqlite:///{tmp_path}/x.db", client=Away()).champion("desk")  # type: ignore[arg-type]


def test_the_same_run_registers_one_version(registry: Registry, policy: TransformersPolicy):
    """Run again, the version that is there is found; an older run does not become the candidate again."""
    first = _register(registry, policy, "k3")
    assert _register(registry, policy, "k3") == first
    assert registry.find("desk", "k3") == first
    assert registry.find("desk", "unknown") is None
    newer = _register(registry, policy, "k5")
    _register(registry, policy, "k3")
    assert registry.resolve("models:/desk@candidate") == newer


def test_a_version_has_its_provenance(registry: Registry, policy: TransformersPolicy):
    """The whole provenance, from the model's own metadata."""
    assert registry.provenance(_register(registry, policy, "k6")) == make_provenance(seed=11)


@pytest.mark.parametrize("before", [False, True], ids=["a new name", "one with a version"])
def test_a_cancelled_registration_leaves_no_model_without_a_version(
    registry: Registry, policy: TransformersPolicy, before: bool
):
    """Cancelled between name and version: the name goes again, unless it has versions of others."""
    model = f"cancelled-{before}"
    if before:
        _register(registry, policy, "first", model=model)

    class Cancelled(Dying):
        """Ends in the call that makes the version; what is asked afterwards is answered."""

        def create_model_version(self, *_: object, **__: object) -> None:
            raise Killed

    cancelled = Registry(registry.tracking_uri, client=Cancelled(registry.client, at=10**6, after=True))  # type: ignore[arg-type]
    with pytest.raises(Killed):
        _register(cancelled, policy, "second", model=model)
    assert [outcomes.name for outcomes in registry.client.search_registered_models(f"name = '{model}'")] == [
        model
    ] * before
    assert len(registry.versions(model)) == before


def test_a_registration_killed_at_any_call_leaves_no_partial_version(registry: Registry, policy: TransformersPolicy):
    """No version, or one that can be loaded; the retry ends with exactly one candidate."""
    import mlflow

    outcomes = set()
    for at in range(1, 20):
        model = f"dying-{at}"
        client = Dying(registry.client, at=at, after=True)
        dying = Registry(registry.tracking_uri, client=client)  # type: ignore[arg-type]
        run_id = registry.open_run("tests", "run", run_key=model, params={})
        tags = {"run_key": model, "verdict": "promote", "checkpoint_uri": "store/x", "checkpoint_sha256": "ab"}
        try:
            dying.register(model, run_id, policy, tags=tags, provenance=make_provenance())
        except Killed:
            versions = registry.versions(model)
            outcomes.add(len(versions))
            for version in versions:
                mlflow.models.get_model_info(f"models:/{model}/{version.version}")
            assert _register(registry, policy, model, model=model).version == 1
            assert len(registry.versions(model)) == 1
            assert registry.resolve(f"models:/{model}@candidate").version == 1
            assert "## Version 1" in registry.client.get_registered_model(model).description
        else:
            assert outcomes == {0, 1}, "it died before the version appeared and after it"
            return
    pytest.fail("it never ended")


def test_requirements_name_versions_that_any_build_satisfies():
    """torch 2.13.0+cpu is asked for as 2.13.0: the package index has no +cpu."""
    import torch

    assert f"torch=={torch.__version__.partition('+')[0]}" in requirements()
    assert all("+" not in one and one.count("==") == 1 for one in requirements())


def test_a_registered_version_is_a_chat_model_with_a_signature(registry: Registry, policy: TransformersPolicy):
    """MLflow loads it and it answers messages; its weights are safetensors, its requirements those of this process."""
    import mlflow

    version = _register(registry, policy, "k4")
    mlflow.set_tracking_uri(registry.tracking_uri)
    model = mlflow.pyfunc.load_model(f"models:/desk/{version.version}")
    assert "messages" in model.metadata.signature.inputs.input_names()
    answer = model.predict({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3})
    assert answer[0]["choices"][0]["message"]["role"] == "assistant"
    folder = Path(mlflow.artifacts.download_artifacts(f"models:/desk/{version.version}"))
    assert not [p for p in folder.rglob("*") if p.suffix in (".pkl", ".bin", ".pt")]
    listed = (folder / "requirements.txt").read_text().splitlines()
    assert set(listed) >= {*requirements(), f"mlflow=={mlflow.__version__}"}


def test_requirements_are_the_versions_that_run_here():
    """Each with a number, those of a build for all processors, too."""
    import numpy
    import transformers

    assert {f"numpy=={numpy.__version__}", f"transformers=={transformers.__version__}"} <= set(requirements())
    assert all(one.partition("==")[2] for one in requirements())


def test_the_registered_model_belongs_to_the_run_that_made_it(registry: Registry, policy: TransformersPolicy):
    """Its own record and that of the version name the same run."""
    import mlflow

    version = _register(registry, policy, "owned", model="owned")
    assert mlflow.models.get_model_info("models:/owned/1").run_id == version.run_id


def test_a_full_disk_is_named_and_the_next_attempt_registers(
    registry: Registry, policy: TransformersPolicy, small_disk: Path, monkeypatch: pytest.MonkeyPatch
):
    """MLflow writes a copy of the model into the folder for temporary files first."""
    (small_disk / "ballast").write_bytes(bytes(2**20 - 2**16))
    with monkeypatch.context() as full:
        full.setattr("grpo.registry.chat_model.user_temp_folder", lambda: small_disk)
        with pytest.raises(StorageError, match=rf"cannot write {small_disk}.*: the disk is full"):
            _register(registry, policy, "full", model="full")
    assert _register(registry, policy, "full", model="full").version == 1
