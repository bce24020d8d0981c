"""The agent of a registered version, rebuilt from a real registry."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path

import pytest
from mlflow.artifacts import download_artifacts

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.environments.support_desk.desk import SupportDesk
from grpo.errors import AddressError, ConfigError
from grpo.evaluation.schema import Decision, Evaluation
from grpo.identity import user_code
from grpo.policy.transformers.model import load
from grpo.registry import ModelVersion, Registry
from grpo.registry.served_agent import _module, served_agent
from grpo_tasks.load_base import BaseCheckpoint, load_base
from grpo_tasks.register import register
from grpo_tasks.registry import registry as current_registry
from tests.doubles import changed, short_run
from tests.grpo.evaluation.test_html_report import evaluation
from tests.grpo.registry.making import make_provenance
from tests.tasks.adapted import put_adapted

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals

AGENT = """
from grpo import MultiTurnAgent
from kiosk.words import TONE

class KioskAgent(MultiTurnAgent):
    def __init__(self, config, *, shop: str):
        super().__init__(config)
        self.shop = shop

    def instructions(self, history, context):
        return [*super().instructions(history, context), f"This is {self.shop}, be {TONE}."]
"""
RENDERER = """
from grpo import Renderer

class KioskRenderer(Renderer):
    def __init__(self, tokenizer, *, tools=(), prefix: str = ""):
        super().__init__(tokenizer, tools=tools)
        self.prefix = prefix

    def decode(self, token_ids):
        return self.prefix + super().decode(token_ids)
"""
SOURCES = {"__init__.py": "", "agent.py": AGENT, "words.py": "TONE = 'brief'\n", "renderer.py": RENDERER}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the package of a kiosk, which can be imported, and an empty registry."""
    folder = tmp_path / "project"
    (folder / "kiosk").mkdir(parents=True)
    for name, source in SOURCES.items():
        (folder / "kiosk" / name).write_text(source)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.startswith("kiosk")]:
        monkeypatch.delitem(sys.modules, name)
    user_code.user_code_digests.cache_clear()
    return folder


def registered(
    tmp_path: Path, model: Path, *, run_key: str = "kiosk", adapted: bool = False, **sections: object
) -> ModelVersion:
    """A version that a run with these sections has registered, with the weights that it started from or adapters."""
    store = ArtifactStore(str(tmp_path / "store"))
    config = PipelineConfig.model_validate(changed(short_run(tmp_path, policy={"model": str(model)}), **sections))
    base: BaseCheckpoint = load_base.fn(policy=config.policy, content="", store=store.uri)
    candidate = put_adapted(store, model, base.checkpoint)[0] if adapted else base.checkpoint
    version: ModelVersion = register.fn(
        config=config,
        run_key=run_key,
        decision=Decision(verdict="promote", reason="every gate passed"),
        evaluation=Evaluation.model_validate(evaluation()),
        candidate=candidate,
        champion=base.checkpoint,
        scenarios=base.checkpoint,
        sources="",
        model="",
        external_digests={},
        policies=(base.policy,),
        store=store.uri,
    ).version
    return version


@pytest.fixture
def version(folder: Path, tmp_path: Path, tiny_folder: Path) -> ModelVersion:
    """A version of an agent and a renderer of the kiosk's own, served by the embedded desk."""
    renderer = {"kind": "python", "object": "kiosk.renderer:KioskRenderer", "options": {"prefix": "Kiosk: "}}
    return registered(
        tmp_path,
        tiny_folder,
        policy={"renderer": renderer},
        agent={"kind": "python", "object": "kiosk.agent:KioskAgent", "options": {"shop": "a kiosk"}},
        rollout={"max_new_tokens": 17},
        evaluation={"temperature": 0.3},
    )


def test_the_agent_of_a_version_is_rebuilt_as_it_was_trained(version: ModelVersion):
    """Class, options, sampling, renderer, tools and both prompts; with its weights it replies."""
    served = served_agent(current_registry(), version)
    assert served.system_prompt == SupportDesk.system_prompt
    assert served.tools == tuple(SupportDesk.tools)
    assert [*filter(None, served.agent.instructions([], {}))] == ["This is a kiosk, be brief."]
    assert (served.agent.config.max_new_tokens, served.agent.config.temperature) == (17, 0.3)
    policy = load(served.files.folder, base=served.files.base)
    assert policy.hash == version.tags["policy"]
    agent = served.with_policy(policy)
    assert agent.renderer is not None
    assert agent.renderer.tools == tuple(SupportDesk.tools)
    reply = asyncio.run(agent.generate_response("Where is my parcel?"))
    assert reply.startswith("Kiosk: ")


def test_a_module_is_named_by_its_file_and_a_package_by_its_folder():
    """As an import names them."""
    names = {name: _module(name) for name in ("agent.py", "shop/agent.py", "shop/__init__.py", "shop/desk/__init__.py")}
    assert list(names.values()) == ["agent", "shop.agent", "shop", "shop.desk"]


def test_the_sources_that_it_needs_are_files_of_its_run(version: ModelVersion, tmp_path: Path):
    """By their path below an import folder, with their digests in the provenance."""
    provenance = current_registry().provenance(version)
    assert provenance.agent is not None
    expected = {f"kiosk/{name}": hashlib.sha256(source.encode()).hexdigest() for name, source in SOURCES.items()}
    assert provenance.agent.modules == expected
    assert provenance.agent.environment_modules == {}
    (tmp_path / "fetched").mkdir()
    folder = Path(download_artifacts(run_id=version.run_id, artifact_path="code", dst_path=str(tmp_path / "fetched")))
    assert {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.py")} == {
        f"kiosk/{name}": source for name, source in SOURCES.items()
    }


def test_other_code_than_that_of_the_training_is_refused(version: ModelVersion, folder: Path):
    """A module that its agent imports has changed by a word: both digests are in the message."""
    words = "TONE = 'verbose'\n"
    (folder / "kiosk" / "words.py").write_text(words)
    then, now = (hashlib.sha256(text.encode()).hexdigest() for text in (SOURCES["words.py"], words))
    with pytest.raises(
        ConfigError,
        match=rf"{version.address} was trained with module kiosk.words of sha256 {then}, and here .*words.py has "
        rf"sha256 {now}\. Its sources are in the folder code of the files of run {version.run_id}",
    ):
        served_agent(current_registry(), version)


def test_missing_code_is_refused(version: ModelVersion, monkeypatch: pytest.MonkeyPatch, folder: Path):
    """On a machine without the project: the module, its digest and where it is."""
    monkeypatch.setattr(sys, "path", [place for place in sys.path if Path(place) != folder])
    for name in [name for name in sys.modules if name.startswith("kiosk")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"trained with module kiosk\S* of sha256 [0-9a-f]{64}, and here it was not"):
        served_agent(current_registry(), version)


def test_adapters_are_served_on_their_base(folder: Path, tmp_path: Path, tiny_folder: Path):
    """The files are those of the adapters and of the checkpoint below; without a class the agent is the package's."""
    version = registered(tmp_path, tiny_folder, adapted=True, agent={"system_prompt": "Be kind."})
    served = served_agent(current_registry(), version)
    assert served.files.base is not None
    assert load(served.files.folder, base=served.files.base).hash == version.tags["policy"]
    assert type(served.agent) is MultiTurnAgent
    assert served.agent.config.system_prompt == "Be kind."
    assert served.renderer is None


def test_a_version_without_a_record_is_refused(registry: Registry, tiny_folder: Path):
    """The provenance has a config, and nothing of the agent's prompt and code."""
    run_id = registry.open_run("kiosk", "kiosk", run_key="kiosk-of-old", params={})
    tags = {"run_key": "kiosk-of-old", "verdict": "promote"}
    provenance = make_provenance()
    version = registry.register("kiosk-of-old", run_id, load(tiny_folder), tags=tags, provenance=provenance)
    with pytest.raises(AddressError, match="models:/kiosk-of-old/1 has no record of its agent"):
        served_agent(registry, version)
