"""Rollout, learner, checkpoints and adapters of families that differ in what they compute, against their own forward.

`make models` tries all families in the same way, and writes docs/internals/models.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from grpo.learner.batch import Sample
from grpo.policy.transformers.model import TransformersPolicy
from tests.models import survey
from tests.models.families import tiny_model

PATHS = {
    "deepseek_v3": "flat",  # latent attention, experts with shared ones
    "gemma2": "flat",  # soft caps, windows in every other layer
    "gpt2": "flat",  # learned positions, one matrix for queries, keys and values
    "gpt_oss": "flat",  # sinks, packed experts with biases
    "lfm2": "padded",  # convolutions
    "llama": "flat",
    "olmo3": "flat",  # norms after the layers, norms of queries and keys
    "phi3": "flat",  # fused projections
    "qwen3_moe": "flat",  # experts
    "qwen3_next": "padded",  # linear attention
    "smollm3": "flat",  # layers without positions
}
"""Forward path of each family: hybrids with convolutions or linear attention are padded."""


@dataclass(frozen=True)
class _Played:
    """Policy of a family, its plain model, and conversations that the policy sampled."""

    policy: TransformersPolicy
    plain: PreTrainedModel
    together: list[Sample]


@cache
def _played(family: str) -> _Played:
    policy = TransformersPolicy(tiny_model(family), survey.tokenizer())
    return _Played(policy, survey.plain_model(family), survey.to_samples(survey.rollout(policy, concurrency=3)))


@pytest.mark.parametrize("family", PATHS)
def test_a_family_has_its_path(family: str):
    """A family that falls back to a slower path shows here."""
    assert _played(family).policy.path_check.path == PATHS[family]


@pytest.mark.parametrize("family", PATHS)
def test_a_rollout_has_the_log_probabilities_of_the_model(family: str):
    """Three turns beyond the window, with a shared first prompt and one conversation at a time."""
    played = _played(family)
    alone = survey.to_samples(survey.rollout(played.policy, concurrency=1))
    assert survey.rollout_difference(played.plain, played.together) < survey.TOLERANCE
    assert survey.rollout_difference(played.plain, alone) < survey.TOLERANCE


@pytest.mark.parametrize("family", PATHS)
def test_the_learner_has_the_log_probabilities_and_the_gradient_of_the_model(family: str):
    """With and without shared prefixes."""
    played = _played(family)
    logprobs, gradients = survey.learner_differences(played.policy, played.plain, played.together)
    assert max(*logprobs, *gradients) < survey.TOLERANCE


@pytest.mark.parametrize("family", PATHS)
def test_a_checkpoint_is_read_as_it_was_written(family: str):
    """After a step, with the moments of the optimizer: the same hash and log-probabilities."""
    assert survey.checkpoint_difference(family, _played(family).together) < survey.TOLERANCE


@pytest.mark.parametrize("family", PATHS)
def test_adapters_are_trained_merged_and_read(family: str):
    """Four layers of each family have at least two adapters each; a step changes adapters alone."""
    adapted, difference = survey.adapter_differences(family, _played(family).together)
    assert adapted >= 8
    assert difference < survey.TOLERANCE


@pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals
def test_a_registered_model_is_read_by_mlflow(tmp_path: Path):
    """The registered weights are equal to the weights of the policy, also packed experts and sinks."""
    assert survey.registration_difference("gpt_oss", _played("gpt_oss").together, folder=tmp_path) < survey.TOLERANCE
