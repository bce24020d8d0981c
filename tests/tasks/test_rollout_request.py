"""What the inputs that shards and windows share count for in their cache identity."""

from __future__ import annotations

from typing import Any

import pytest

from grpo.artifacts import Artifact
from grpo.config.agent import AgentSettings
from grpo.config.pipeline import PipelineConfig
from grpo.config.renderer import RendererSettings
from grpo.identity.cache_identity import stage_key
from grpo_tasks.rollout_request import RolloutRequest


def _artifact(kind: str, content: str = "0", folder: str = "/a") -> Artifact:
    return Artifact(uri=f"{folder}/{kind}", sha256=content, kind=kind)


@pytest.fixture
def request_of_a_run(desk_config: dict[str, Any]) -> RolloutRequest:
    config = PipelineConfig.model_validate(desk_config)
    return RolloutRequest(
        checkpoint=_artifact("checkpoint"),
        scenarios=_artifact("scenarios"),
        split=_artifact("split"),
        parts=config.episode_parts,
        settings=config.rollout,
        seed=3,
    )


def _key(request: RolloutRequest, **changes: object) -> str:
    return stage_key("rollout", {"request": request.model_copy(update=changes), "store": "s"})


def test_each_part_of_a_request_makes_another_rollout(request_of_a_run: RolloutRequest):
    """Other weights, scenarios or seed, another prompt, environment or renderer: never a cache hit."""
    given, parts = request_of_a_run, request_of_a_run.parts
    renderer = RendererSettings(kind="python", object="json:JSONDecoder")
    environment = parts.environment.model_copy(update={"max_turns": 99})
    keys = [
        _key(given),
        *(_key(given, **{name: _artifact(name, "1")}) for name in ("checkpoint", "scenarios", "split")),
        _key(given, seed=4),
        _key(given, settings=given.settings.model_copy(update={"max_new_tokens": 99})),
        _key(given, parts=parts.model_copy(update={"agent": AgentSettings(system_prompt="Be brief.")})),
        _key(given, parts=parts.model_copy(update={"environment": environment})),
        _key(given, parts=parts.model_copy(update={"renderer": renderer})),
    ]
    assert len(set(keys)) == len(keys)


def test_the_place_of_a_rollout_does_not_count(request_of_a_run: RolloutRequest):
    """Another store, other servers and another pause before a request is sent twice: the same tokens."""
    given = request_of_a_run
    elsewhere = given.settings.model_copy(update={"hedge_s": 5.0, "servers": ("http://a",)})
    moved = {name: _artifact(name, folder="s3://b") for name in ("checkpoint", "scenarios", "split")}
    assert _key(given, settings=elsewhere, **moved) == _key(given)


def test_the_parts_of_a_config_are_its_own(desk_config: dict[str, Any]):
    """A renderer is set in the policy's section, the agent and the environment in theirs."""
    renderer = {"kind": "python", "object": "json:JSONDecoder"}
    policy, agent = {**desk_config["policy"], "renderer": renderer}, {"system_prompt": "Be brief."}
    config = PipelineConfig.model_validate({**desk_config, "policy": policy, "agent": agent})
    parts = config.episode_parts
    expected = (config.environment, config.agent, config.policy.renderer)
    assert (parts.environment, parts.agent, parts.renderer) == expected
