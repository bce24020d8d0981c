"""The agent of the config is the one that plays."""

from __future__ import annotations

from collections.abc import Mapping

from grpo.artifacts import ArtifactStore
from grpo.config.agent import AgentSettings
from grpo.config.pipeline import PipelineConfig
from grpo.tables import read_all
from grpo.trajectories import Trajectory
from grpo_tasks.ingest import ingest
from grpo_tasks.load_base import load_base
from grpo_tasks.rollout import rollout
from grpo_tasks.split import split


def _play(config: PipelineConfig, agent: AgentSettings) -> list[Trajectory]:
    store = config.store
    read = ingest.fn(sources=config.scenarios.sources, content="", max_quarantined_fraction=0.0, store=store)
    sides = split.fn(scenarios=read.scenarios, validation_fraction=0.25, limit=8, store=store)
    policy = load_base.fn(policy=config.policy, content="", store=store)
    played = rollout.fn(
        scenarios=read.scenarios,
        split=sides.split,
        checkpoint=policy.checkpoint,
        agent=agent,
        environment=config.environment,
        settings=config.rollout,
        samples=1,
        temperature=1.0,
        part="heldout",
        round=0,
        shard=0,
        seed=3,
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
