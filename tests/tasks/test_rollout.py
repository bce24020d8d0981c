"""The agent of the config is the one that plays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from grpo.artifacts import ArtifactStore
from grpo.config.agent import AgentSettings
from grpo.config.pipeline import PipelineConfig
from grpo.config.renderer import RendererSettings
from grpo.policy.tokenizer import load_tokenizer
from grpo.renderers.chat_template import Renderer
from grpo.tables import read_all
from grpo.trajectories import Trajectory
from grpo_tasks.ingest import ingest
from grpo_tasks.load_base import load_base
from grpo_tasks.rollout import rollout
from grpo_tasks.rollout_request import RolloutRequest
from grpo_tasks.split import split
from tests.doubles import changed

DATED = """
from dataclasses import replace
from grpo import Renderer

class DatedRenderer(Renderer):
    def __init__(self, tokenizer, *, tools=(), day):
        super().__init__(tokenizer, tools=tools)
        self.day = day

    def build_prompt(self, messages):
        first, *others = messages
        return super().build_prompt([replace(first, content=f"{first.content} Today is {self.day}."), *others])
"""


def _play(
    config: PipelineConfig, agent: AgentSettings, *, part: int | Literal["heldout"] = "heldout", samples: int = 1
) -> list[Trajectory]:
    store = config.store
    read = ingest.fn(sources=config.scenarios.sources, content="", max_quarantined_fraction=0.0, store=store)
    sides = split.fn(scenarios=read.scenarios, validation_fraction=0.25, limit=8, store=store)
    policy = load_base.fn(policy=config.policy, content="", store=store)
    played = rollout.fn(
        request=RolloutRequest(
            checkpoint=policy.checkpoint,
            scenarios=read.scenarios,
            split=sides.split,
            parts=config.episode_parts.model_copy(update={"agent": agent}),
            settings=config.rollout,
            seed=3,
        ),
        samples=samples,
        temperature=1.0,
        part=part,
        round=0,
        shard=0,
        store=store,
    )
    return read_all([ArtifactStore(store).path(played.rollout)])


def test_the_prompt_and_the_strategy_of_the_config_stand_in_the_record(desk_config: Mapping[str, object]):
    """The agent's instructions reach the policy's tokens; without an agent section nothing is added."""
    config = PipelineConfig.model_validate(desk_config)
    plain, told = (
        _play(config, agent)[0]
        for agent in (AgentSettings(), AgentSettings(system_prompt="Be brief.", strategy="customer_service"))
    )
    assert "Be brief." not in plain.turns[0].message.content
    assert told.turns[0].message.role == "system"
    assert told.turns[0].message.content.startswith("Be brief.")
    assert len(told.turns[0].message.content) > len("Be brief.") + len(plain.turns[0].message.content)
    assert told.scenario_id == plain.scenario_id
    assert told.token_ids.tolist() != plain.token_ids.tolist()


def test_only_training_rollouts_branch(desk_config: Mapping[str, object]):
    """Held-out episodes are counted as independent ones, so each is played from its start."""
    config = PipelineConfig.model_validate(changed(desk_config, rollout={"trees": 1, "group_size": 4}))
    trained = _play(config, AgentSettings(), part=0, samples=4)
    assert {t.sample for t in trained if t.branch is not None} == {1, 2, 3}
    assert all(t.branch is None for t in trained if t.sample == 0)
    assert all(t.branch is None for t in _play(config, AgentSettings(), samples=4))


def test_a_renderer_of_ones_own_renders_every_prompt(
    desk_config: Mapping[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its option is in the tokens that the policy reads, and not in the messages; its hash is in the record."""
    (tmp_path / "dated_renderer.py").write_text(DATED)
    monkeypatch.syspath_prepend(tmp_path)
    renderer = {"kind": "python", "object": "dated_renderer:DatedRenderer", "options": {"day": "Monday"}}
    config = PipelineConfig.model_validate(desk_config)
    policy = config.policy.model_copy(update={"renderer": RendererSettings.model_validate(renderer)})
    dated = _play(config.model_copy(update={"policy": policy}), AgentSettings())[0]
    plain = _play(config, AgentSettings())[0]
    tokenizer = load_tokenizer(Path(config.policy.model))
    assert "Today is Monday." in tokenizer.decode(dated.token_ids)
    assert "Today is" not in tokenizer.decode(plain.token_ids)
    assert "Today is" not in str(dated.messages)
    assert dated.renderer_hash != plain.renderer_hash == Renderer(tokenizer).hash
