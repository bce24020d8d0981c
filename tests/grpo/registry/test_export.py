from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo.artifacts import ArtifactStore
from grpo.errors import AddressError, ConfigError
from grpo.learner.checkpoints import save_base
from grpo.messages import Message
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.registry import Registry
from grpo.registry.export import _write_apart, export
from grpo.registry.serving import tool_parser, vllm_command
from grpo.renderers.chat_template import Renderer
from tests.doubles import put_folder
from tests.grpo.registry.making import make_provenance, put_version
from tests.tasks.adapted import put_adapted

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
    exported = export(registry, "models:/exported@candidate", folder)
    assert (exported.lineage.name, exported.lineage.version) == ("exported", 1)
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
    assert f"    {exported.command}\n" in card
    command = exported.command.split()
    assert command[:5] == ["vllm", "serve", str(folder), "--max-model-len", str(policy.max_context)]
    assert command[command.index("--tool-call-parser") - 1 :][:3] == [
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    ]
    assert "A Hugging Face folder with the adapters, if the training had some, merged into the weights. The" in card
    assert command[-2:] == ["--served-model-name", "exported"]
    assert Path(command[command.index("--chat-template") + 1]).read_text(encoding="utf-8") == tokenizer.chat_template
    assert [path.name for path in folder.parent.iterdir()] == ["champion"]


def test_a_model_without_a_limit_is_served_without_one():
    """vLLM takes what it derives from the config."""
    assert vllm_command(Path("m"), "n", context=None, parser=None) == (
        "vllm serve m --generation-config vllm --chat-template m/chat_template.jinja --served-model-name n"
    )


def test_a_folder_that_exists_and_a_version_that_does_not_are_refused(
    registry: Registry, policy: TransformersPolicy, tmp_path: Path
):
    """Nothing is overwritten, nothing is left."""
    with pytest.raises(ConfigError, match=r"exists\. Name a folder that does not"):
        export(registry, "models:/exported@candidate", tmp_path)
    with pytest.raises(AddressError):
        export(registry, "models:/exported/7", tmp_path / "new")
    with pytest.raises(ConfigError, match="control characters"):
        export(registry, "models:/exported@candidate", tmp_path / "new\nline")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def adapted(registry: Registry, tiny_folder: Path, tmp_path: Path) -> TransformersPolicy:
    """The policy of the only version of `exported-adapted`, whose checkpoint has adapters."""
    store = ArtifactStore(str(tmp_path / "store"))
    base = put_folder(store, "checkpoint", lambda folder: save_base(load(tiny_folder), folder))
    checkpoint, policy = put_adapted(store, tiny_folder, base)
    tags = {"run_key": str(tmp_path), "policy": policy.hash, "verdict": "promote", "champion_sha256": base.sha256}
    tags |= {"checkpoint_uri": checkpoint.uri, "checkpoint_sha256": checkpoint.sha256}
    run_id = registry.open_run("tests", "run", run_key=str(tmp_path), params={})
    registry.register("exported-adapted", run_id, policy, tags=tags, provenance=make_provenance())
    return policy


def _logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return torch.as_tensor(model.eval()(torch.arange(8)[None]).logits)


def test_adapters_are_exported_merged_or_apart(registry: Registry, adapted: TransformersPolicy, tmp_path: Path):
    """Both compute what the trained policy does, loaded by transformers alone; the command for vLLM fits each."""
    wanted = _logits(adapted.model)
    export(registry, "models:/exported-adapted@candidate", tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert torch.allclose(_logits(merged), wanted, atol=1e-4)
    exported = export(registry, "models:/exported-adapted@candidate", tmp_path / "apart", adapters=True)
    apart = AutoModelForCausalLM.from_pretrained(tmp_path / "apart" / "adapters")
    assert torch.allclose(_logits(apart), wanted, atol=1e-4)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "apart" / "base")
    assert not torch.allclose(_logits(base), wanted, atol=1e-2)
    assert exported.command.startswith(f"vllm serve {tmp_path / 'apart' / 'base'} ")
    lora = f"--enable-lora --max-lora-rank 8 --lora-modules exported-adapted={tmp_path / 'apart' / 'adapters'}"
    assert exported.command.endswith(lora)
    assert exported.command in (tmp_path / "apart" / "README.md").read_text()
    names = {path.name for path in (tmp_path / "apart").rglob("*")}
    assert not names & {"learner.json", "manifest.json", "optimizer.safetensors"}


def test_adapters_apart_need_adapters(
    registry: Registry, adapted: TransformersPolicy, tiny_folder: Path, tmp_path: Path
):
    """A version of whole weights is refused with the remedy, and leaves nothing."""
    store = ArtifactStore(str(tmp_path / "store"))
    base = put_folder(store, "checkpoint", lambda folder: save_base(load(tiny_folder), folder))
    put_version(registry, "whole", base.sha256, against="", checkpoint_uri=base.uri)
    version = registry.resolve("models:/whole/1")
    with pytest.raises(ConfigError, match=r"whole version 1 was trained without adapters .* Leave out --adapters"):
        _write_apart(registry, version, tmp_path / ".partial", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("family", "parser"),
    [
        ("<tool_call>\n{{ c.function | tojson }}\n</tool_call>", "hermes"),
        (
            '[TOOL_CALLS][{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}]',
            "mistral",
        ),
        (
            "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}"
            "<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
            "</function>\n</tool_call>",
            "qwen3_coder",
        ),
    ],
)
def test_the_parser_of_calls_is_that_of_the_template(policy: TransformersPolicy, family: str, parser: str):
    """Three families, by what their templates render."""
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
        + family
        + "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert tool_parser(tokenizer) == parser
