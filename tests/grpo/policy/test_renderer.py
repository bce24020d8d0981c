"""Renderers of the user's own: options, hash, identity and refusals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from transformers import PreTrainedTokenizerBase

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.config.pipeline import load_config
from grpo.config.renderer import RendererSettings
from grpo.errors import ConfigError
from grpo.identity import user_code
from grpo.identity.code import external_digests
from grpo.messages import Message, Tool
from grpo.policy.renderer import check_renderer, make_renderer
from grpo.policy.scripted import ScriptedPolicy
from grpo.policy.tokenizer import load_tokenizer
from grpo.preflight import Facts
from grpo.preflight.data import objects
from grpo.renderers.byte_renderer import ByteRenderer
from grpo.renderers.chat_template import Renderer
from tests.doubles import changed, short_run

MODULE = """
from grpo import Renderer
from florist_words import GREETING

class FloristRenderer(Renderer):
    def __init__(self, tokenizer, *, tools=(), greeting: str = GREETING, loud: bool = False):
        super().__init__(tokenizer, tools=tools)
        self.greeting = greeting.upper() if loud else greeting

    def decode(self, token_ids):
        return self.greeting + super().decode(token_ids)

class Bare(Renderer):
    def __init__(self, tokenizer, *, tools=()):
        self.tools = tools

class Vase:
    pass

def florist(tokenizer, tools):
    return FloristRenderer(tokenizer, tools=tools, greeting="Good morning. ")
"""
TOOL = Tool(name="look_up", parameters={"type": "object", "properties": {"flower": {"type": "string"}}})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the modules of a florist, which can be imported."""
    (tmp_path / "florist.py").write_text(MODULE)
    (tmp_path / "florist_words.py").write_text("GREETING = 'Hello. '\n")
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("florist")]:
        monkeypatch.delitem(sys.modules, name)
    user_code.user_code_digests.cache_clear()
    return tmp_path


@pytest.fixture
def tokenizer(tiny_folder: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(tiny_folder)


def settings(name: str = "FloristRenderer", **options: object) -> RendererSettings:
    return RendererSettings(kind="python", object=f"florist:{name}", options=options)


def test_tools_and_options_reach_the_renderer(folder: Path, tokenizer: PreTrainedTokenizerBase):
    """Of a class, and of a function that makes one; without settings the renderer is that of the template."""
    plain = make_renderer(tokenizer, tools=(TOOL,))
    assert type(plain) is Renderer
    reply = plain.encode_reply(Message(role="assistant", content="Roses."))
    loud = make_renderer(tokenizer, tools=[TOOL], settings=settings(loud=True))
    assert (loud.decode(reply), loud.tools) == ("HELLO. Roses.", (TOOL,))
    assert make_renderer(tokenizer, settings=settings("florist")).decode(reply) == "Good morning. Roses."


def test_the_hash_names_class_options_and_source(folder: Path, tokenizer: PreTrainedTokenizerBase):
    """Tools are not part of it; a changed file is."""
    hashes = [
        make_renderer(tokenizer, tools=tools, settings=chosen).hash
        for tools, chosen in [
            ((), None),
            ((), settings()),
            ((), settings(loud=True)),
            ((), settings("florist")),
            ((TOOL,), settings()),
        ]
    ]
    assert hashes[1] == hashes[4]
    assert len({*hashes}) == 4
    (folder / "florist.py").write_text(MODULE + "\nPOTS = 3\n")
    assert make_renderer(tokenizer, settings=settings()).hash not in hashes


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        (settings(greating="Hi"), "florist:FloristRenderer has no option 'greating'. It takes greeting, loud"),
        (settings(loud="perhaps"), "option loud: Input should be a valid boolean"),
        (settings(tools=[]), "florist:FloristRenderer has no option 'tools'"),
        (settings("Vase"), "florist:Vase is not a Renderer. Derive it from Renderer"),
        (settings("Rose"), "module florist has no Rose"),
    ],
)
def test_a_misspelt_option_or_object_is_refused_before_a_tokenizer_is_loaded(
    folder: Path, chosen: RendererSettings, reason: str
):
    """With its name, and what it takes."""
    with pytest.raises(ConfigError, match=reason):
        check_renderer(chosen)


def test_a_renderer_that_lacks_what_a_sampler_reads_is_refused(folder: Path, tokenizer: PreTrainedTokenizerBase):
    """It was not initialized."""
    with pytest.raises(ConfigError, match=r"florist:Bare makes a renderer without hash\. Call super\(\).__init__"):
        make_renderer(tokenizer, settings=settings("Bare"))


def test_a_policy_that_reads_messages_has_none(folder: Path):
    """It gets bytes; a renderer of one's own would not be used."""
    assert isinstance(make_renderer(None), ByteRenderer)
    with pytest.raises(ConfigError, match="florist:FloristRenderer writes token ids, and this policy reads messages"):
        make_renderer(None, settings=settings())


def test_an_agent_renders_with_that_of_its_config(folder: Path, tokenizer: PreTrainedTokenizerBase):
    """Its own tools included."""

    class Scripted(ScriptedPolicy):
        pass

    policy = Scripted(["Roses."])
    policy.tokenizer = tokenizer  # type: ignore[attr-defined]
    agent = MultiTurnAgent(AgentConfig(renderer=settings(greeting="Hi. ")), policy=policy)
    agent.set_policy(policy)
    assert agent.renderer is not None
    assert agent.renderer.decode([]) == "Hi. "


def test_its_modules_are_part_of_the_identity_and_options_are_checked_before_a_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The module beside the config is found by the config that names it, with what it imports."""
    document = short_run(tmp_path)
    renderer = {"kind": "python", "object": "florist:FloristRenderer", "options": {"loud": True}}
    policy = {**document["policy"], "renderer": renderer}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(changed(document, policy=policy)))
    config = load_config(tmp_path / "run.yaml")
    assert config.import_from == str(tmp_path)
    assert {name for name in external_digests([config]) if name.startswith("florist")} == {
        "florist:FloristRenderer, module florist",
        "florist:FloristRenderer, module florist_words",
    }
    with Facts(config) as facts:
        assert list(objects(facts)) == []
    misspelt = config.policy.model_copy(update={"renderer": settings(lout=True)})
    with Facts(config.model_copy(update={"policy": misspelt})) as facts:
        (error,) = objects(facts)
    assert isinstance(error, ConfigError)
    assert "has no option 'lout'" in str(error)
