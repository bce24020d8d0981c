from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo.errors import AddressError, ConfigError
from grpo.messages import Message
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.registry import Registry
from grpo.registry.export import export
from grpo.renderers.chat_template import Renderer
from tests.grpo.registry.making import make_provenance

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


@pytest.fixture
def policy(registry: Registry, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> TransformersPolicy:
    """The policy of the only version of `exported`."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.tracking_uri)
    policy = load(tiny_folder)
    tags = {"run_key": "exported", "policy": "p2", "verdict": "promote", "checkpoint_sha256": "p2"}
    tags |= {"checkpoint_uri": "store/x", "champion_sha256": "base"}
    run_id = registry.open_run("tests", "run", run_key="exported", params={})
    registry.register("exported", run_id, policy, tags=tags, provenance=make_provenance())
    return policy


def test_a_version_is_exported_as_transformers_reads_it(registry: Registry, policy: TransformersPolicy, tmp_path: Path):
    """Weights, prompts and a card with the result and the command that serves the folder; nothing else beside it."""
    folder = tmp_path / "out" / "champion"
    lineage = export(registry, "models:/exported@candidate", folder)
    assert (lineage.name, lineage.version) == ("exported", 1)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for (name, left), (_, right) in zip(model.named_parameters(), policy.model.named_parameters(), strict=True):
        assert torch.equal(left, right), name
    messages = (Message(role="system", content="Be brief."), Message(role="user", content="hello"))
    plain = [{"role": message.role, "content": message.content} for message in messages]
    ids = tokenizer.apply_chat_template(plain, add_generation_prompt=True, return_dict=False)
    assert ids == Renderer(policy.tokenizer).build_prompt(messages)
    card = (folder / "README.md").read_text()
    assert card.startswith("# exported, version 1\n")
    assert "**promote**: every gate passed" in card
    assert "| improvement in success | 0.04 |" in card
    assert f"vllm serve {folder} --served-model-name exported --max-model-len {policy.max_context}" in card
    assert [path.name for path in folder.parent.iterdir()] == ["champion"]


def test_a_folder_that_exists_and_a_version_that_does_not_are_refused(
    registry: Registry, policy: TransformersPolicy, tmp_path: Path
):
    """Nothing is overwritten, nothing is left."""
    with pytest.raises(ConfigError, match="exists; name a folder that does not"):
        export(registry, "models:/exported@candidate", tmp_path)
    with pytest.raises(AddressError):
        export(registry, "models:/exported/7", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
