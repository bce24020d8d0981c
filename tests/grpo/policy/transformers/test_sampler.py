from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def _sampling(seed: int, tokens: int = 6, temperature: float = 1.0) -> Sampling:
    return Sampling(temperature=temperature, max_new_tokens=tokens, seed=seed)


def _generate(
    policy: TransformersPolicy, conversations: Sequence[Sequence[Sequence[int]]], *, concurrency: int, **sampling: float
) -> list[list[Generation]]:
    """Run conversations concurrently; each is a list of new prompt tokens per turn."""

    async def converse(sampler: object, seed: int, prompts: Sequence[Sequence[int]]) -> list[Generation]:
        session = sampler.open()  # type: ignore[attr-defined]
        generations = [
            await session.generate(Prompt(new_ids=ids), _sampling(seed, **sampling))  # type: ignore[arg-type]
            for ids in prompts
        ]
        session.close()
        return generations

    async def run() -> list[list[Generation]]:
        async with policy.sampler(concurrency=concurrency, renderer=Renderer(policy.tokenizer)) as sampler:
            return list(
                await asyncio.gather(*(converse(sampler, k, prompts) for k, prompts in enumerate(conversations)))
            )

    return asyncio.run(run())


def _exact(
    policy: TransformersPolicy, prompt: list[int], generation: Generation, temperature: float = 1.0
) -> np.ndarray:
    """Log-probabilities by one plain forward pass over everything, without any cache."""
    ids = torch.tensor([prompt + generation.token_ids])
    with torch.no_grad():
        logprobs = torch.log_softmax(policy.model(input_ids=ids).logits[0].float() / temperature, dim=-1)
    start = len(prompt)
    return np.array([float(logprobs[start + k - 1, token]) for k, token in enumerate(generation.token_ids)])


PROMPTS = [[5, 20, 31, 44], [5, 20, 31, 44], [7, 60], [9, 11, 12, 13, 14, 15, 16, 99, 100]]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_stored_log_probabilities_are_those_of_a_plain_forward_pass(policy: TransformersPolicy, temperature: float):
    """In any batch, each token's log-probability is exact to 1e-5."""
    conversations = _generate(policy, [[p] for p in PROMPTS], concurrency=4, temperature=temperature)
    for prompt, (generation,) in zip(PROMPTS, conversations, strict=True):
        assert np.abs(np.array(generation.logprobs) - _exact(policy, prompt, generation, temperature)).max() < 1e-5


def test_a_later_turn_prefills_only_its_new_tokens_and_stays_exact(policy: TransformersPolicy):
    """The KV cache kept between turns gives the values of a full forward pass."""
    first, second = _generate(policy, [[[5, 20, 31], [77, 78, 79]]], concurrency=1)[0]
    prompt = [5, 20, 31, *first.token_ids, 77, 78, 79]
    assert np.abs(np.array(second.logprobs) - _exact(policy, prompt, second)).max() < 1e-5


def test_tokens_do_not_depend_on_the_batch_or_concurrency(policy: TransformersPolicy):
    """Alone or together: the same tokens from the same seeds."""
    together = _generate(policy, [[p, [50, 51]] for p in PROMPTS], concurrency=4)
    pairs = _generate(policy, [[p, [50, 51]] for p in PROMPTS], concurrency=1)
    assert [[g.token_ids for g in turns] for turns in together] == [[g.token_ids for g in turns] for turns in pairs]


def test_siblings_share_a_prompt_and_have_their_own_random_numbers(policy: TransformersPolicy):
    """The same prompt with another seed gives other tokens."""
    (left,), (right,) = _generate(policy, [[PROMPTS[0]], [PROMPTS[0]]], concurrency=2, tokens=12)
    assert left.token_ids != right.token_ids


def test_the_token_limit_is_a_length_stop(policy: TransformersPolicy):
    """A random model does not end its turn within 3 tokens of this seed."""
    (generation,) = _generate(policy, [[[5, 20]]], concurrency=1, tokens=3)[0]
    assert (len(generation.token_ids), generation.stop) == (3, "length")


def test_sampling_follows_the_distribution(policy: TransformersPolicy):
    """2000 first tokens: each token's frequency is within 5 standard errors of its probability."""
    count = 2000
    conversations = _generate(policy, [[[5, 20, 31]]] * count, concurrency=500, tokens=1)
    with torch.no_grad():
        probabilities = torch.softmax(
            policy.model(input_ids=torch.tensor([[5, 20, 31]])).logits[0, -1].float(), 0
        ).numpy()
    shares = (
        np.bincount([generation.token_ids[0] for (generation,) in conversations], minlength=len(probabilities)) / count
    )
    errors = np.sqrt(probabilities * (1 - probabilities) / count)
    assert (np.abs(shares - probabilities) < 5 * errors + 1e-9).all()


def test_a_cancelled_turn_frees_its_slot_for_the_next_conversation(policy: TransformersPolicy):
    """Two slots: one turn is cancelled, the other continues, a third conversation is admitted, both undisturbed."""
    (neighbour,) = _generate(policy, [[PROMPTS[0]]], concurrency=1, tokens=150)[0]
    (third,) = _generate(policy, [[PROMPTS[2]]], concurrency=1)[0]
    problems: list[object] = []

    async def run() -> tuple[Generation, Generation]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, problem: problems.append(problem))
        async with policy.sampler(concurrency=2, renderer=Renderer(policy.tokenizer)) as sampler:
            cancelled, kept = sampler.open(), sampler.open()
            turn = asyncio.create_task(cancelled.generate(Prompt(new_ids=PROMPTS[3]), _sampling(5, tokens=150)))
            other = asyncio.create_task(kept.generate(Prompt(new_ids=PROMPTS[0]), _sampling(0, tokens=150)))
            while sampler.tokens_generated < 4:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            cancelled.close()
            third = await sampler.open().generate(Prompt(new_ids=PROMPTS[2]), _sampling(0))
            return await other, third

    kept, admitted = asyncio.run(asyncio.wait_for(run(), 60))
    assert (kept.token_ids, admitted.token_ids) == (neighbour.token_ids, third.token_ids)
    assert not problems


def test_the_sampler_idles_after_its_only_turn_is_cancelled(policy: TransformersPolicy):
    """An empty batch causes neither a forward pass nor an error; the next conversation is served."""
    (expected,) = _generate(policy, [[PROMPTS[2]]], concurrency=1)[0]
    problems: list[object] = []

    async def run() -> Generation:
        asyncio.get_running_loop().set_exception_handler(lambda loop, problem: problems.append(problem))
        async with policy.sampler(concurrency=1, renderer=Renderer(policy.tokenizer)) as sampler:
            cancelled = sampler.open()
            turn = asyncio.create_task(cancelled.generate(Prompt(new_ids=PROMPTS[0]), _sampling(5, tokens=150)))
            while sampler.tokens_generated < 2:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            cancelled.close()
            for _ in range(20):  # forward passes, if there were any
                await asyncio.sleep(0)
            return await sampler.open().generate(Prompt(new_ids=PROMPTS[2]), _sampling(0))

    generation = asyncio.run(asyncio.wait_for(run(), 60))
    gc.collect()  # a task with an unretrieved error reports it now
    assert generation.token_ids == expected.token_ids
    assert not problems
