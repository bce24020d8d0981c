from __future__ import annotations

from pathlib import Path

import pytest

from grpo.errors import AddressError, RegistryError
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.registry import ModelVersion, Registry
from grpo.registry.chat_model import requirements
from tests.grpo.registry.making import ANNA, make_provenance, put_version
from tests.grpo.registry.test_succession import Dying, Killed


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def _register(registry: Registry, policy: TransformersPolicy, key: str, *, model: str = "desk") -> ModelVersion:
    run_id = registry.open_run("tests", "run", run_key=key, params={"training.iterations": "2"})
    tags = {"run_key": key, "verdict": "promote", "checkpoint_uri": "store/x", "checkpoint_sha256": "ab"}
    return registry.register(model, run_id, policy, tags=tags, provenance=make_provenance(seed=11))


pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


def test_the_champion_is_the_version_that_was_promoted(registry: Registry, policy: TransformersPolicy):
    """Nobody before, version 1 after; the newest version is the candidate."""
    assert registry.champion("desk") is None
    first = _register(registry, policy, "k1")
    second = _register(registry, policy, "k2")
    registry.succession("desk").promote(first.version, reason="gates", by=ANNA)
    serving = registry.champion("desk")
    assert serving is not None
    assert (serving.version, serving.checkpoint.sha256) == (first.version, "ab")
    assert registry.at("models:/desk@candidate") == second
    assert registry.at(f"models:/desk/{first.version}") == first
    assert registry.aliases(first) == ["champion"]


@pytest.mark.parametrize("address", ["models:/desk@nobody", "models:/desk/99", "models:/unknown@champion", "desk"])
def test_an_address_that_leads_nowhere_is_an_error(registry: Registry, policy: TransformersPolicy, address: str):
    """It is named."""
    _register(registry, policy, "k1")
    with pytest.raises(AddressError, match=address):
        registry.at(address)


def test_a_champion_that_is_missing_is_not_one_that_never_was(registry: Registry):
    """Else the next candidate would be judged against the base; where none has served there is nobody."""
    version = put_version(registry, "gone", "a", against="base")
    assert registry.champion("gone") is None
    registry.succession("gone").promote(version, reason="gates", by=ANNA)
    registry.client.delete_model_version("gone", str(version))
    with pytest.raises(RegistryError, match="`grpo rollback gone"):
        registry.champion("gone")


def test_a_registry_that_cannot_be_asked_is_not_one_without_a_champion(tmp_path: Path):
    """Else a candidate would be judged against the base while the champion's server is away."""
    from mlflow.exceptions import MlflowException

    class Away:
        def get_model_version_by_alias(self, model: str, alias: str) -> object:
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
    assert registry.at("models:/desk@candidate") == newer


def test_a_version_tells_what_it_was_made_from(registry: Registry, policy: TransformersPolicy):
    """The whole provenance, from the model's own metadata."""
    assert registry.provenance(_register(registry, policy, "k6")) == make_provenance(seed=11)


@pytest.mark.parametrize("before", [False, True], ids=["a new name", "one with a version"])
def test_a_registering_that_is_cancelled_leaves_no_name_without_a_version(
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
    assert [found.name for found in registry.client.search_registered_models(f"name = '{model}'")] == [model] * before
    assert len(registry.versions(model)) == before


def test_a_registering_that_dies_at_any_call_leaves_no_half_version(registry: Registry, policy: TransformersPolicy):
    """Either there is no version, or one that can be loaded; the next try ends with exactly one candidate."""
    import mlflow

    found = set()
    for at in range(1, 12):
        model = f"dying-{at}"
        client = Dying(registry.client, at=at, after=True)
        dying = Registry(registry.tracking_uri, client=client)  # type: ignore[arg-type]
        run_id = registry.open_run("tests", "run", run_key=model, params={})
        tags = {"run_key": model, "verdict": "promote", "checkpoint_uri": "store/x", "checkpoint_sha256": "ab"}
        try:
            dying.register(model, run_id, policy, tags=tags, provenance=make_provenance())
        except Killed:
            versions = registry.versions(model)
            found.add(len(versions))
            for version in versions:
                mlflow.models.get_model_info(f"models:/{model}/{version.version}")
            assert _register(registry, policy, model, model=model).version == 1
            assert len(registry.versions(model)) == 1
            assert registry.at(f"models:/{model}@candidate").version == 1
        else:
            assert found == {0, 1}, "it died before the version appeared and after it"
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
