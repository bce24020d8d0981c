"""Conversations of minigrid's bot as demonstrations."""

from __future__ import annotations

import importlib.metadata

import pytest

from grpo.config.environments import GymnasiumTextSettings
from grpo.config.sft import GeneratedDemonstrations
from grpo.errors import DataError
from grpo.identity.code import external_digests
from grpo.learner.offline.demonstrations import read_demonstrations

pytest.importorskip("minigrid", reason="the extra minigrid is not installed")

BABYAI = "grpo.environments.gymnasium_text.babyai"


def generated(function: str, **options: object) -> GeneratedDemonstrations:
    return GeneratedDemonstrations.model_validate({"kind": "python", "object": function, "options": options})


def test_the_bots_episodes_are_conversations_that_fine_tuning_reads():
    """Two of each level, each begins with the mission and ends with the action that completes it."""
    source = generated(f"{BABYAI}:babyai_demonstrations", levels=["BabyAI-OpenDoor-v0", "BabyAI-PickupLoc-v0"], each=2)
    conversations = read_demonstrations(source)
    assert [c[-1].content for c in conversations] == ["toggle", "toggle", "pickup", "pickup"]
    assert all([m.role for m in c] == ["user", "assistant"] * (len(c) // 2) for c in conversations)
    assert conversations == read_demonstrations(source)


def test_an_episode_longer_than_the_limit_of_turns_is_left_out():
    """The bot takes eleven steps in some worlds of this level."""
    source = generated(f"{BABYAI}:babyai_demonstrations", levels=["BabyAI-GoToObj-v0"], each=20, max_turns=5)
    lengths = [len(conversation) // 2 for conversation in read_demonstrations(source)]
    assert (len(lengths), max(lengths)) == (20, 5)


def test_a_record_that_is_not_a_conversation_is_an_error_that_names_it():
    """Scenarios are none."""
    source = generated(f"{BABYAI}:babyai_scenarios", levels=[{"id": "BabyAI-GoToObj-v0", "train": 1}])
    with pytest.raises(DataError, match=r"babyai:babyai_scenarios, record 1 is not a conversation \(KeyError: 'messag"):
        read_demonstrations(source)


def test_the_release_of_minigrid_is_in_the_identity_of_environment_and_demonstrations():
    """Another one makes other worlds."""
    version = importlib.metadata.version("minigrid")
    assert external_digests([GymnasiumTextSettings(kind="gymnasium_text")])["package minigrid"] == version
    source = generated(f"{BABYAI}:babyai_demonstrations", levels=[], each=1)
    assert external_digests([source])[f"{source.reference}, package minigrid"] == version
