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


def _speak(
    policy: TransformersPolicy, conversations: Sequence[Sequence[Sequence[int]]], *, concurrency: int, **sampling: float
) -> list[list[Generation]]:
    """Play conversations at once; each is a list of what is heard before each turn."""

    async def one(sampler: object, seed: int, heard: Sequence[Sequence[int]]) -> list[Generation]:
        session = sampler.open()  # type: ignore[attr-defined]
        said = [
            await session.generate(Prompt(new_ids=ids), _sampling(seed, **sampling))  # type: ignore[arg-type]
            for ids in heard
        ]
        session.close()
        return said

    async def run() -> list[list[Generation]]:
        async with policy.sampler(concurrency=concurrency, renderer=Renderer(policy.tokenizer)) as sampler:
            return list(await asyncio.gather(*(one(sampler, k, heard) for k, heard in enumerate(conversations))))

    return asyncio.run(run())


def _exact(policy: TransformersPolicy, prompt: list[int], said: Generation, temperature: float = 1.0) -> np.ndarray:
    """Log-probabilities by one plain forward pass over everything, without any cache."""
    ids = torch.tensor([prompt + said.token_ids])
    with torch.no_grad():
        logprobs = torch.log_softmax(policy.model(input_ids=ids).logits[0].float() / temperature, dim=-1)
    start = len(prompt)
    return np.array([float(logprobs[start + k - 1, token]) for k, token in enumerate(said.token_ids)])


PROMPTS = [[5, 20, 31, 44], [5, 20, 31, 44], [7, 60], [9, 11, 12, 13, 14, 15, 16, 99, 100]]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_stored_log_probabilities_are_those_of_a_plain_forward_pass(policy: TransformersPolicy, temperature: float):
    """Whatever the batch, each token's log-probability is exact to 1e-5."""
    played = _speak(policy, [[p] for p in PROMPTS], concurrency=4, temperature=temperature)
    for prompt, (said,) in zip(PROMPTS, played, strict=True):
        assert np.abs(np.array(said.logprobs) - _exact(policy, prompt, said, temperature)).max() < 1e-5


def test_a_later_turn_reads_only_its_new_tokens_and_stays_exact(policy: TransformersPolicy):
    """The cache kept between turns gives what re-reading everything would."""
    first, second = _speak(policy, [[[5, 20, 31], [77, 78, 79]]], concurrency=1)[0]
    prompt = [5, 20, 31, *first.token_ids, 77, 78, 79]
    assert np.abs(np.array(second.logprobs) - _exact(policy, prompt, second)).max() < 1e-5


def test_what_is_said_does_not_depend_on_neighbours_or_concurrency(policy: TransformersPolicy):
    """Alone, in pairs or all at once: the same tokens from the same seeds."""
    together = _speak(policy, [[p, [50, 51]] for p in PROMPTS], concurrency=4)
    pairs = _speak(policy, [[p, [50, 51]] for p in PROMPTS], concurrency=1)
    assert [[g.token_ids for g in said] for said in together] == [[g.token_ids for g in said] for said in pairs]


def test_siblings_share_a_prompt_and_not_their_luck(policy: TransformersPolicy):
    """The same prompt with another seed gives other words."""
    (left,), (right,) = _speak(policy, [[PROMPTS[0]], [PROMPTS[0]]], concurrency=2, tokens=12)
    assert left.token_ids != right.token_ids


def test_the_token_limit_is_a_length_stop(policy: TransformersPolicy):
    """A random model does not end its turn within 3 tokens of this seed."""
    (said,) = _speak(policy, [[[5, 20]]], concurrency=1, tokens=3)[0]
    assert (len(said.token_ids), said.stop) == (3, "length")


def test_sampling_follows_the_distribution(policy: TransformersPolicy):
    """2000 first tokens: each token's share is within 5 standard errors of its probability."""
    count = 2000
    played = _speak(policy, [[[5, 20, 31]]] * count, concurrency=500, tokens=1)
    with torch.no_grad():
        probabilities = torch.softmax(
            policy.model(input_ids=torch.tensor([[5, 20, 31]])).logits[0, -1].float(), 0
        ).numpy()
    shares = np.bincount([said.token_ids[0] for (said,) in played], minlength=len(probabilities)) / count
    errors = np.sqrt(probabilities * (1 - probabilities) / count)
    assert (np.abs(shares - probabilities) < 5 * errors + 1e-9).all()


def test_a_turn_that_is_cut_off_gives_its_place_to_the_next(policy: TransformersPolicy):
    """Two places: one turn is cancelled, its neighbour goes on, a third conversation takes over, both undisturbed."""
    (neighbour,) = _speak(policy, [[PROMPTS[0]]], concurrency=1, tokens=150)[0]
    (third,) = _speak(policy, [[PROMPTS[2]]], concurrency=1)[0]
    problems: list[object] = []

    async def run() -> tuple[Generation, Generation]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, problem: problems.append(problem))
        async with policy.sampler(concurrency=2, renderer=Renderer(policy.tokenizer)) as sampler:
            cut, kept = sampler.open(), sampler.open()
            turn = asyncio.create_task(cut.generate(Prompt(new_ids=PROMPTS[3]), _sampling(5, tokens=150)))
            other = asyncio.create_task(kept.generate(Prompt(new_ids=PROMPTS[0]), _sampling(0, tokens=150)))
            while sampler.tokens_generated < 4:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            cut.close()
            said = await sampler.open().generate(Prompt(new_ids=PROMPTS[2]), _sampling(0))
            return await other, said

    went_on, took_over = asyncio.run(asyncio.wait_for(run(), 60))
    assert (went_on.token_ids, took_over.token_ids) == (neighbour.token_ids, third.token_ids)
    assert not problems


def test_when_the_only_turn_is_cut_off_the_sampler_rests(policy: TransformersPolicy):
    """No forward pass over nobody, no error; and it speaks again when it is asked."""
    (alone,) = _speak(policy, [[PROMPTS[2]]], concurrency=1)[0]
    problems: list[object] = []

    async def run() -> Generation:
        asyncio.get_running_loop().set_exception_handler(lambda loop, problem: problems.append(problem))
        async with policy.sampler(concurrency=1, renderer=Renderer(policy.tokenizer)) as sampler:
            cut = sampler.open()
            turn = asyncio.create_task(cut.generate(Prompt(new_ids=PROMPTS[0]), _sampling(5, tokens=150)))
            while sampler.tokens_generated < 2:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            cut.close()
            for _ in range(20):  # forward passes, if there were any
                await asyncio.sleep(0)
            return await sampler.open().generate(Prompt(new_ids=PROMPTS[2]), _sampling(0))

    said = asyncio.run(asyncio.wait_for(run(), 60))
    gc.collect()  # a task that nobody asked for its error tells it now
    assert said.token_ids == alone.token_ids
    assert not problems
