"""Environment, agent and renderer made from one value."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config.agent import PythonAgentSettings
from grpo.config.environments import SupportDeskSettings
from grpo.config.episode_parts import EpisodeParts
from grpo.environments.episode_parts import make_parts

AGENT = """
from grpo import ToolAgent

def note(text: str) -> str:
    return text

class Clerk(ToolAgent):
    def __init__(self, config):
        super().__init__(config, [{"name": "note", "function": note}])
"""


def test_the_renderer_shows_the_tools_of_environment_and_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The desk's tools come first, then the tool of an agent of the user's own."""
    (tmp_path / "noting_clerk.py").write_text(AGENT)
    monkeypatch.syspath_prepend(tmp_path)
    agent = PythonAgentSettings(kind="python", object="noting_clerk:Clerk")
    made = make_parts(EpisodeParts(environment=SupportDeskSettings(kind="support_desk"), agent=agent), None)
    assert [tool.name for tool in made.renderer.tools] == [*(tool.name for tool in made.environment.tools), "note"]
