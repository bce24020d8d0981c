"""A sampler of which the model is replaced while turns are in progress."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from grpo.errors import PolicyError
from grpo.learner.batch import Sample
from grpo.learner.logprobs import with_proximal_logprobs
from grpo.policy.policy import Prompt, Sampling
from grpo.policy.transformers.exactness import choose_path
from grpo.policy.transformers.model import load
from grpo.policy.transformers.sampling.base import TurnSampler, TurnSession
from grpo.policy.transformers.sampling.catalog import make_sampler, make_serving_sampler
from grpo.trajectories import PolicySpan
from tests.models.families import tiny_model

SYSTEM = list(range(40, 52))
PROMPTS = ([*SYSTEM, 5, 20], [*SYSTEM, 5, 20], [*SYSTEM, 7, 60])
"""All begin alike. The first two are samples of one scenario, so that one of them follows the other."""
LATER = 4
"""The second prompt of each conversation has this many tokens."""


def _other(model: PreTrainedModel) -> PreTrainedModel:
    """The model after an update that moves each weight a little."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return other


def _converse(sampler: TurnSampler, *, idle: Callable[[], None] = lambda: None) -> list[tuple[Sample, TurnSession]]:
    """Two turns of 6 tokens in each conversation. `idle` is called once, when all are between their turns."""
    waiting = asyncio.Barrier(len(PROMPTS))

    async def converse(index: int) -> tuple[Sample, TurnSession]:
        session, ids, mask, logprobs = sampler.open(), [], [], []  # type: ignore[var-annotated]
        for turn, prompt in enumerate((PROMPTS[index], [30 + index] * LATER)):
            if turn and await waiting.wait() == 0:
                idle()
            if turn:
                await waiting.wait()
            sampling = Sampling(temperature=1.0, max_new_tokens=6, seed=index)
            generation = await session.generate(Prompt(new_ids=prompt), sampling)
            ids += [*prompt, *generation.token_ids]
            mask += [False] * len(prompt) + [True] * len(generation.token_ids)
            logprobs += [0.0] * len(prompt) + (generation.logprobs or [])
        session.close()
        sample = Sample(
            token_ids=np.array(ids, np.int32),
            loss_mask=np.array(mask),
            sampler_logprobs=np.array(logprobs, np.float32),
            advantages=np.zeros(len(ids), np.float32),
            temperature=1.0,
            place=str(index),
        )
        return sample, session

    async def run() -> list[tuple[Sample, TurnSession]]:
        async with sampler:
            return list(await asyncio.gather(*map(converse, range(len(PROMPTS)))))

    return asyncio.run(run())


def _error(sample: Sample, session: TurnSession, models: dict[str, PreTrainedModel]) -> float:
    """Largest difference of a token's log-probability from the learner's, under the weights of its span, in nats."""
    ends = [*(span.start for span in session.policy_spans[1:]), len(sample.token_ids)]
    differences = []
    for span, end in zip(session.policy_spans, ends, strict=True):
        (computed,) = with_proximal_logprobs(models[span.policy_hash], [sample], precision="fp32", max_tokens=4096)
        assert computed.proximal_logprobs is not None
        difference = np.abs(computed.proximal_logprobs - sample.sampler_logprobs)
        differences.append(difference[span.start : end][sample.loss_mask[span.start : end]].max())
    return float(max(differences))


@pytest.fixture(scope="module", params=["flat", "mamba2"])
def models(request: pytest.FixtureRequest, tiny_folder: Path) -> dict[str, PreTrainedModel]:
    """Two versions of a model with flat attention, and of one that runs whole turns in padded batches."""
    model = load(tiny_folder).model if request.param == "flat" else tiny_model(request.param)
    choose_path(model, request.param)
    return {"v0": model, "v1": _other(model)}


def _sampler(models: dict[str, PreTrainedModel]) -> TurnSampler:
    return make_sampler(models["v0"], stop_ids=(), concurrency=4, max_context=256, policy_hash="v0")


def test_each_token_has_the_log_probability_of_the_weights_that_generated_it(models: dict[str, PreTrainedModel]):
    """The model is replaced after the third pass, in the middle of the first turns."""
    sampler, passes = _sampler(models), 0

    def count() -> None:
        nonlocal passes
        passes += 1
        if passes == 3:
            sampler.replace_model(models["v1"], "v1")

    sampler.on_pass = count
    for index, (sample, session) in enumerate(_converse(sampler)):
        start = len(PROMPTS[index])
        assert session.policy_spans == [
            PolicySpan(policy_hash="v0", start=start),
            PolicySpan(policy_hash="v1", start=start + 3),
        ]
        assert _error(sample, session, models) < 1e-4
        stale = [replace(span, policy_hash="v0") for span in session.policy_spans]
        session.policy_spans[:] = stale
        assert _error(sample, session, models) > 1e-2, "the two policies hardly differ"


def test_idle_conversations_are_read_again_by_the_new_weights(models: dict[str, PreTrainedModel]):
    """Both replacements come between the turns, so the first turn is of v0, and the second of the last model."""
    sampler = _sampler(models)

    def replace_twice() -> None:
        sampler.replace_model(models["v0"], "unused")
        sampler.replace_model(models["v1"], "v1")

    for index, (sample, session) in enumerate(_converse(sampler, idle=replace_twice)):
        start = len(PROMPTS[index])
        assert session.policy_spans == [
            PolicySpan(policy_hash="v0", start=start),
            PolicySpan(policy_hash="v1", start=start + 6 + LATER),
        ]
        assert _error(sample, session, models) < 1e-4


def test_another_forward_path_is_refused(tiny_folder: Path):
    """Keys and values of one layout do not fit into the other."""
    model = load(tiny_folder).model
    other = copy.deepcopy(model)
    other.forward_path = "padded"
    sampler = make_sampler(model, stop_ids=(), concurrency=1, max_context=64)
    with pytest.raises(PolicyError, match="needs forward path padded, and its predecessor flat"):
        sampler.replace_model(other, "v1")


def test_a_server_makes_another_sampler_for_another_policy(tiny_folder: Path):
    """Its prefix cache belongs to one policy."""
    model = load(tiny_folder).model
    sampler = make_serving_sampler(
        model, stop_ids=(), concurrency=1, max_context=64, prefill_chunk=8, prefix_cache_bytes=0
    )
    with pytest.raises(PolicyError, match="Make another sampler for the new policy"):
        sampler.replace_model(model, "v1")
