from __future__ import annotations

from pathlib import Path

import pytest

from grpo.errors import RegistryError
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.registry import Registry


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    folder = tmp_path_factory.mktemp("mlflow")
    return Registry(f"sqlite:///{folder}/mlflow.db", artifact_root=f"file://{folder}/artifacts")


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def _register(registry: Registry, policy: TransformersPolicy, key: str, verdict: str) -> object:
    run_id = registry.open_run("tests", "run", run_key=key, params={"training.iterations": "2"})
    tags = {"run_key": key, "verdict": verdict, "checkpoint_uri": "store/x", "checkpoint_sha256": "ab"}
    return registry.register("desk", run_id, policy, tags=tags)


pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


def test_a_promoted_version_serves_and_a_refused_one_does_not(registry: Registry, policy: TransformersPolicy):
    """Aliases follow verdicts; the champion stays when a candidate is refused."""
    assert registry.champion("desk") is None
    first = _register(registry, policy, "k1", "promote")
    registry.promote(first)
    second = _register(registry, policy, "k2", "refuse")
    with pytest.raises(RegistryError, match="version 2 was judged 'refuse'"):
        registry.promote(second)
    serving = registry.champion("desk")
    assert serving is not None
    assert serving.version == 1
    assert serving.checkpoint.sha256 == "ab"
    assert registry.client.get_model_version_by_alias("desk", "candidate").version in (2, "2")


def test_the_same_run_registers_one_version(registry: Registry, policy: TransformersPolicy):
    """Run again, the version that is there is found."""
    first = _register(registry, policy, "k3", "refuse")
    assert _register(registry, policy, "k3", "refuse") == first
    assert registry.find("desk", "k3") == first
    assert registry.find("desk", "unknown") is None


def test_a_registered_version_is_a_chat_model_with_a_signature(registry: Registry, policy: TransformersPolicy):
    """MLflow loads it and it answers messages; its weights are safetensors."""
    import mlflow

    version = _register(registry, policy, "k4", "refuse")
    mlflow.set_tracking_uri(registry.tracking_uri)
    model = mlflow.pyfunc.load_model(f"models:/desk/{version.version}")
    assert "messages" in model.metadata.signature.inputs.input_names()
    answer = model.predict({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3})
    assert answer[0]["choices"][0]["message"]["role"] == "assistant"
    folder = Path(mlflow.artifacts.download_artifacts(f"models:/desk/{version.version}"))
    assert not [p for p in folder.rglob("*") if p.suffix in (".pkl", ".bin", ".pt")]
