from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grpo.errors import ConfigError
from grpo.policy.policy import Prompt, Sampling
from grpo.policy.transformers.model import load
from grpo.policy.transformers.sampling.logits_filters import filter_logits
from grpo.renderers.chat_template import Renderer
from tests.grpo.agents.fixtures import run

SCORES = torch.tensor([0.2, 0.5, 0.3]).log()


def _kept(**settings: float) -> list[bool]:
    sampling = Sampling(max_new_tokens=1, seed=0, **{"temperature": 1.0, **settings})  # type: ignore[arg-type]
    return filter_logits(SCORES[None], [sampling])[0].isfinite().tolist()


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [True, True, True]),
        ({"temperature": 0}, [False, True, False]),
        ({"top_k": 2}, [False, True, True]),
        ({"top_k": 9}, [True, True, True]),
        ({"top_p": 0.4}, [False, True, False]),
        ({"top_p": 0.6}, [False, True, True]),
        ({"top_p": 0.9}, [True, True, True]),
        ({"top_p": 0.9, "top_k": 1}, [False, True, False]),
    ],
)
def test_excluded_tokens_have_no_probability(settings: dict[str, float], kept: list[bool]):
    """.2 .5 .3: the likeliest first until top_p is reached, at most top_k, greedy at temperature 0."""
    assert _kept(**settings) == kept


def test_each_turn_of_a_batch_has_its_own_filters():
    """The first is unfiltered, the second greedy."""
    unfiltered = Sampling(temperature=1.0, max_new_tokens=1, seed=0)
    greedy = Sampling(temperature=0, max_new_tokens=1, seed=0)
    scores = filter_logits(SCORES.repeat(2, 1), [unfiltered, greedy])
    assert scores.isfinite().tolist() == [[True, True, True], [False, True, False]]


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"top_p": 0.5}, {"top_k": 3}])
def test_filtered_samples_have_no_log_probabilities(tiny_folder: Path, settings: dict[str, float]):
    """They would not be the policy's, so they cannot be trained on."""
    policy = load(tiny_folder)
    sampling = Sampling(max_new_tokens=3, seed=0, **{"temperature": 1.0, **settings})  # type: ignore[arg-type]

    async def generate() -> object:
        async with policy.sampler(concurrency=1, renderer=Renderer(policy.tokenizer)) as sampler:
            return (await sampler.open().generate(Prompt(new_ids=[5, 6]), sampling)).logprobs

    assert run(generate()) is None


@pytest.mark.parametrize("settings", [{"temperature": -1}, {"top_p": 0}, {"top_p": 2}, {"top_k": -1}])
def test_invalid_sampling_settings_are_refused(settings: dict[str, float]):
    """The message has the value."""
    with pytest.raises(ConfigError, match=str(next(iter(settings.values())))):
        _kept(**settings)
