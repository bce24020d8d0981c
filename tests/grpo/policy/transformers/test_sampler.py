from __future__ import annotations

import asyncio
import copy
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from grpo.policy.policy import Generation, Prompt, SampledToken, Sampling
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.policy.transformers.sampling.inverse_transform import inverse_transform
from grpo.policy.transformers.sampling.slot_sampler import SlotSampler
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

    kept, admitted = asyncio.run(asyncio.wait_for(run(), 240))
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

    generation = asyncio.run(asyncio.wait_for(run(), 240))
    gc.collect()  # a task with an unretrieved error reports it now
    assert generation.token_ids == expected.token_ids
    assert not problems


def _drawn(policy: TransformersPolicy, prompt: list[int], sampling: Sampling, *, turn: int = 0) -> list[int]:
    """Tokens of a turn by inverting the cumulative distribution of plain forward passes."""
    ids, drawn = list(prompt), []
    for uniform in sampling.uniforms(turn):
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([ids])).logits[0, -1].double()
        cumulative = torch.softmax(logits / sampling.temperature, 0).cumsum(0)
        drawn.append(int((cumulative <= uniform * cumulative[-1]).sum()))
        ids.append(drawn[-1])
    return drawn


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_each_token_is_where_its_random_number_falls(policy: TransformersPolicy, temperature: float):
    """The first number of the sample's turn for its first token, and so on; the second turn has numbers of its own."""
    ((first, second),) = _generate(policy, [[[5, 20, 31], [77, 78]]], concurrency=1, temperature=temperature)
    sampling = _sampling(0, temperature=temperature)
    assert first.token_ids == _drawn(policy, [5, 20, 31], sampling)
    heard = [5, 20, 31, *first.token_ids, 77, 78]
    assert second.token_ids == _drawn(policy, heard, sampling, turn=1)


@asynccontextmanager
async def _opened(
    policy: TransformersPolicy, *, concurrency: int, max_context: int = 1024
) -> AsyncIterator[SlotSampler]:
    renderer = Renderer(policy.tokenizer)
    sampler = SlotSampler(policy.model, stop_ids=(renderer.stop_id,), concurrency=concurrency, max_context=max_context)
    async with sampler:
        yield sampler


def test_a_shared_prompt_is_read_once_and_a_later_turn_reads_only_new_tokens(policy: TransformersPolicy):
    """Four siblings of 9 tokens: 9 prefilled and 4 generated; each further token reads the one before it.

    The second turn of one reads its last token and two new ones.
    """

    async def run() -> list[tuple[int, int]]:
        counts = []
        async with _opened(policy, concurrency=4) as sampler:
            sessions = [sampler.open() for _ in range(4)]
            turns = [s.generate(Prompt(new_ids=PROMPTS[3]), _sampling(k, tokens=3)) for k, s in enumerate(sessions)]
            await asyncio.gather(*turns)
            counts.append((sampler.tokens_processed, sampler.tokens_generated))
            await sessions[0].generate(Prompt(new_ids=[50, 51]), _sampling(0, tokens=1))
            counts.append((sampler.tokens_processed, sampler.tokens_generated))
        return counts

    # 9 + 2 passes · 4 tokens = 17 read, 3 · 4 generated; then 3 more read and 1 generated
    assert asyncio.run(run()) == [(17, 12), (20, 13)]


def test_a_prefix_that_all_prompts_share_is_read_once(policy: TransformersPolicy):
    """150 tokens of a system prompt in three conversations, one of two siblings, and in a fourth that comes later."""
    system = [5 + index % 90 for index in range(150)]
    prompts = [[*system, 20, 31], [*system, 20, 31], [*system, 77], [*system, 60, 61, 62], [*system, 15, 150]]

    async def run() -> tuple[list[Generation], list[int]]:
        async with _opened(policy, concurrency=5) as sampler:
            sessions = [sampler.open() for _ in prompts]

            async def turn(index: int) -> Generation:
                return await sessions[index].generate(Prompt(new_ids=prompts[index]), _sampling(index, tokens=3))

            generations = list(await asyncio.gather(*map(turn, range(4))))
            counts = [sampler.tokens_processed]
            # what is saved, 150 tokens, is not worth a pass for one conversation, and needs none where it has been read
            generations.append(await turn(4))
            return generations, [*counts, sampler.tokens_processed]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpo.policy.transformers.sampling.slot_sampler._MIN_SAVED", 150)
        generations, counts = asyncio.run(run())
    # 150, then 2 + 1 + 3 of the prompts, and 2 passes · 4 tokens; later 2 of the prompt and 2 passes
    assert counts == [164, 168]
    for prompt, generation in zip(prompts, generations, strict=True):
        assert np.abs(np.array(generation.logprobs) - _exact(policy, prompt, generation)).max() < 1e-5


def test_a_long_prefix_that_all_prompts_share_is_held_once(policy: TransformersPolicy):
    """600 tokens of three conversations and a later one; a fifth shares 550 of them, a sixth begins otherwise."""
    system = [5 + index % 90 for index in range(600)]
    prompts = [[*system, 20, 31], [*system, 77], [*system, 60, 61, 62], [*system, 15], [*system[:550], 9, 9], [6, 7]]

    async def run() -> tuple[list[Generation], list[int], list[int]]:
        generations, read, shared = [], [], []
        async with _opened(policy, concurrency=6, max_context=700) as sampler:
            sessions = [sampler.open() for _ in prompts]

            async def turn(index: int, tokens: int = 3) -> Generation:
                return await sessions[index].generate(Prompt(new_ids=prompts[index]), _sampling(index, tokens=tokens))

            for together in ((0, 1, 2), (3,), (4,), (5,)):
                generations += await asyncio.gather(*map(turn, together))
                read.append(sampler.tokens_processed)
                shared.append(sampler._cache.shared_length)
            again = await sessions[0].generate(Prompt(new_ids=[50, 51]), _sampling(0, tokens=3))
            prompts[0] += [*generations[0].token_ids, 50, 51]
            return [again, *generations[1:]], read, shared

    generations, read, shared = asyncio.run(run())
    # 600, 2 + 1 + 3 of the prompts and 2 passes · 3 tokens; then 1, 2 and 2 of the prompts and 2 passes
    assert read == [612, 615, 619, 623]
    assert shared == [600, 600, 550, 0]
    for prompt, generation in zip(prompts, generations, strict=True):
        assert np.abs(np.array(generation.logprobs) - _exact(policy, prompt, generation)).max() < 1e-5


def test_a_prefix_below_the_minimum_is_copied(policy: TransformersPolicy):
    """511 tokens of two prompts. A prompt alone is held for those that may come, but not where only one is played."""
    system = [5 + index % 90 for index in range(511)]

    async def shared(*prompts: list[int], concurrency: int = 2) -> int:
        async with _opened(policy, concurrency=concurrency, max_context=700) as sampler:
            turns = [sampler.open().generate(Prompt(new_ids=ids), _sampling(0, tokens=1)) for ids in prompts]
            await asyncio.gather(*turns)
            return sampler._cache.shared_length

    assert asyncio.run(shared([*system, 20, 21], [*system, 30])) == 0
    assert asyncio.run(shared([*system, 15, 20, 21])) == 513
    assert asyncio.run(shared([*system, 15, 20, 21], concurrency=1)) == 0
    assert asyncio.run(shared([*system, 15, 20, 21], [*system, 15, 30])) == 512


def test_a_prefix_is_held_again_after_another_has_taken_its_place(policy: TransformersPolicy):
    """Waves of two conversations that begin with 600 tokens, the second wave otherwise; slots do not grow by it.

    The third wave shares 560 tokens more than the 600 that are held, which is held as well; of the fourth, 300 more are
    copied.
    """
    first, second = [5 + index % 90 for index in range(600)], [6 + index % 80 for index in range(600)]
    waves = [
        [[*first, 20, 31], [*first, 77]],
        [[*second, 20, 31], [*second, 77]],
        [[*second, *first[:560], 9, 7], [*second, *first[:560], 8]],
        [[*second, *first[:560], *[11] * 300, 9, 7], [*second, *first[:560], *[11] * 300, 8]],
    ]

    async def run() -> list[tuple[list[Generation], int, int, int]]:
        seen = []
        async with _opened(policy, concurrency=4, max_context=1500) as sampler:
            for prompts in waves:
                sessions = [sampler.open() for _ in prompts]
                before = sampler.tokens_processed
                turns = [
                    session.generate(Prompt(new_ids=ids), _sampling(index, tokens=1))
                    for index, (session, ids) in enumerate(zip(sessions, prompts, strict=True))
                ]
                generations = list(await asyncio.gather(*turns))
                read = sampler.tokens_processed - before
                seen.append((generations, read, sampler._cache.shared_length, sampler._cache.capacity))
                for session in sessions:
                    session.close()
        return seen

    seen = asyncio.run(run())
    assert [read for _, read, _, _ in seen] == [603, 603, 1163, 303]
    assert [shared for _, _, shared, _ in seen] == [600, 600, 1160, 1160]
    assert [capacity for _, _, _, capacity in seen] == [512] * 4
    for prompts, (generations, _, _, _) in zip(waves, seen, strict=True):
        for prompt, generation in zip(prompts, generations, strict=True):
            assert np.abs(np.array(generation.logprobs) - _exact(policy, prompt, generation)).max() < 1e-5


def test_the_last_token_of_a_long_prompt_may_share_a_pass_with_a_shorter_one(
    policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
):
    """At most 6 tokens: 6 of a prompt of 7, then the 3 of the other and the last."""
    monkeypatch.setattr("grpo.policy.transformers.sampling.slot_sampler._PASS_TOKENS", 6)
    prompts = [[5, 20, 31], [9, 10, 11, 12, 13, 14, 15]]
    conversations = _generate(policy, [[prompt] for prompt in prompts], concurrency=2, tokens=3)
    for prompt, (generation,) in zip(prompts, conversations, strict=True):
        assert np.abs(np.array(generation.logprobs) - _exact(policy, prompt, generation)).max() < 1e-5


def test_a_batch_with_more_tokens_than_a_pass_is_read_in_several(
    policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
):
    """At most 6 tokens: 6 of a prompt of 9, prompts of 4 and 2 together, the other 3; a sibling's is not read."""
    monkeypatch.setattr("grpo.policy.transformers.sampling.slot_sampler._PASS_TOKENS", 6)
    read: list[int] = []
    handle = policy.model.register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        conversations = _generate(policy, [[prompt] for prompt in PROMPTS], concurrency=4, tokens=2)
    finally:
        handle.remove()
    assert read == [6, 6, 3, 4]
    for prompt, (generation,) in zip(PROMPTS, conversations, strict=True):
        assert np.abs(np.array(generation.logprobs) - _exact(policy, prompt, generation)).max() < 1e-5


def test_the_inverse_transform_finds_the_interval_of_each_number():
    """.1 .2 .3 .4 and numbers in each interval, and at the ends of intervals, which belong to the next token."""
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    uniforms = torch.tensor([0.0, 0.09, 0.11, 0.35, 0.61, 0.99], dtype=torch.float64)
    assert inverse_transform(probabilities.expand(6, 4), torch.arange(6), uniforms).tolist() == [0, 0, 1, 2, 3, 3]
    uneven = torch.softmax(3 * torch.randn(50, 700, generator=torch.Generator().manual_seed(3)), dim=-1)
    numbers = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    cumulative = uneven.double().cumsum(-1)
    expected = (cumulative <= (numbers * cumulative[:, -1])[:, None]).sum(-1)
    assert inverse_transform(uneven, torch.arange(len(numbers)), numbers).tolist() == expected.tolist()


@pytest.mark.parametrize("places", [(3,), (0, 255), (256, 699), (511, 512)])
def test_a_token_of_probability_0_is_never_chosen(places: tuple[int, ...]):
    """Whatever the number, in the first block of 256 tokens or in another."""
    probabilities = torch.zeros(700)
    probabilities[list(places)] = 1 / 3
    numbers = torch.tensor([0.0, 1e-300, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert set(inverse_transform(probabilities.expand(4, 700), torch.arange(4), numbers).tolist()) <= set(places)


def test_each_token_is_streamed_as_it_is_sampled(policy: TransformersPolicy):
    """In order, before the turn is over."""
    heard: list[SampledToken] = []

    async def run() -> Generation:
        async with _opened(policy, concurrency=1) as sampler:
            return await sampler.open().generate(Prompt(new_ids=[5, 20], on_token=heard.append), _sampling(0))

    generation = asyncio.run(run())
    assert (generation.token_ids, generation.logprobs) == ([t.id for t in heard], [t.logprob for t in heard])
    assert len(heard) == 6


def test_a_callback_ends_a_turn(policy: TransformersPolicy):
    """True at the third token of six: three are generated, and the next turn has numbers of its own."""
    first, second = [], []

    async def run() -> tuple[Generation, Generation]:
        async with _opened(policy, concurrency=1) as sampler:
            session = sampler.open()

            def on_token(token: SampledToken) -> bool:
                first.append(token.id)
                return len(first) == 3

            ended = await session.generate(Prompt(new_ids=[5, 20, 31], on_token=on_token), _sampling(0))
            return ended, await session.generate(Prompt(new_ids=[77], on_token=second.append), _sampling(0))

    ended, following = asyncio.run(run())
    expected = _drawn(policy, [5, 20, 31], _sampling(0))[:3]
    assert (ended.token_ids, ended.stop, first) == (expected, "callback", expected)
    assert following.token_ids == _drawn(policy, [5, 20, 31, *expected, 77], _sampling(0), turn=1)
    assert (following.stop, [token.id for token in second]) == ("length", following.token_ids)


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.5, 1.0, 0), (0.0, 1.0, 0), (0.7, 0.6, 0), (1.0, 1.0, 4)]
)
def test_log_probabilities_of_likeliest_tokens(
    policy: TransformersPolicy, temperature: float, top_p: float, top_k: int
):
    """Those of a plain forward pass at the temperature, before any filter; in order, the sampled token's as well.

    All 320 of them sum to 1. The turn beside it has none.
    """
    tokens: list[SampledToken] = []
    filters = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    size = policy.model.config.vocab_size

    async def run() -> list[Generation]:
        async with _opened(policy, concurrency=2) as sampler:
            sampling = Sampling(max_new_tokens=5, seed=0, top_logprobs=size + 1, **filters)  # type: ignore[arg-type]
            prompt = Prompt(new_ids=PROMPTS[0], on_token=tokens.append)
            beside = sampler.open().generate(Prompt(new_ids=PROMPTS[2]), _sampling(1))
            return list(await asyncio.gather(sampler.open().generate(prompt, sampling), beside))

    generation, beside = asyncio.run(run())
    ids = torch.tensor([PROMPTS[0] + generation.token_ids])
    with torch.no_grad():
        logits = policy.model(input_ids=ids).logits[0, len(PROMPTS[0]) - 1 : -1].float()
    exact = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    assert generation.top_logprobs == [token.top_logprobs for token in tokens]
    assert len(tokens) == 5
    for row, token in zip(exact, tokens, strict=True):
        returned, values = zip(*token.top_logprobs, strict=True)
        assert sorted(returned) == list(range(size))
        assert list(values) == sorted(values, reverse=True)
        assert torch.tensor(values) == pytest.approx(row[list(returned)], abs=1e-5)
        assert np.exp(values).sum() == pytest.approx(1.0, abs=1e-5)
        assert token.logprob == dict(token.top_logprobs)[token.id]
    assert beside.top_logprobs is None
    assert (generation.logprobs is None) == (not temperature or top_p < 1 or top_k > 0)


def test_likeliest_tokens_do_not_change_what_is_sampled(policy: TransformersPolicy):
    """The same tokens and log-probabilities to the last bit, with and without."""

    async def run(count: int) -> Generation:
        async with _opened(policy, concurrency=1) as sampler:
            sampling = Sampling(temperature=1.0, max_new_tokens=20, seed=0, top_logprobs=count)
            return await sampler.open().generate(Prompt(new_ids=PROMPTS[0]), sampling)

    plain, listed = asyncio.run(run(0)), asyncio.run(run(2))
    assert (plain.token_ids, plain.logprobs) == (listed.token_ids, listed.logprobs)
    assert listed.top_logprobs is not None
    assert {len(top) for top in listed.top_logprobs} == {2}


def test_a_conversation_that_waits_is_served_when_a_slot_is_freed_later(policy: TransformersPolicy):
    """One slot, whose session closes long after its last turn, when nothing is computed any more."""

    async def run() -> Generation:
        async with _opened(policy, concurrency=1) as sampler:
            holder = sampler.open()
            await holder.generate(Prompt(new_ids=[5, 20]), _sampling(1))
            waiting = asyncio.create_task(sampler.open().generate(Prompt(new_ids=PROMPTS[0]), _sampling(0)))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not waiting.done()
            holder.close()
            return await waiting

    generation = asyncio.run(asyncio.wait_for(run(), 240))
    assert generation.token_ids == _drawn(policy, PROMPTS[0], _sampling(0))


def test_a_session_that_closes_during_its_turn_leaves_the_others_alone(policy: TransformersPolicy):
    """Slot 0 closes in the middle: the turn in slot 1 moves to it and goes on, the closed one is cancelled."""
    (neighbour,) = _generate(policy, [[PROMPTS[0]]], concurrency=1, tokens=60)[0]

    async def run() -> Generation:
        async with _opened(policy, concurrency=2) as sampler:
            closing, kept = sampler.open(), sampler.open()
            turn = asyncio.create_task(closing.generate(Prompt(new_ids=PROMPTS[3]), _sampling(5, tokens=60)))
            other = asyncio.create_task(kept.generate(Prompt(new_ids=PROMPTS[0]), _sampling(0, tokens=60)))
            while sampler.tokens_generated < 4:
                await asyncio.sleep(0)
            closing.close()
            with pytest.raises(asyncio.CancelledError):
                await turn
            return await other

    assert asyncio.run(asyncio.wait_for(run(), 240)).token_ids == neighbour.token_ids


def test_a_turn_ends_where_the_context_does(policy: TransformersPolicy):
    """Room for 8 tokens and a prompt of 4: four are generated."""

    async def run() -> Generation:
        async with _opened(policy, concurrency=1, max_context=8) as sampler:
            return await sampler.open().generate(Prompt(new_ids=PROMPTS[0]), _sampling(0, tokens=50))

    generation = asyncio.run(run())
    assert (len(generation.token_ids), generation.stop) == (4, "length")
    assert generation.token_ids == _drawn(policy, PROMPTS[0], _sampling(0, tokens=50))[:4]


def test_the_stop_token_ends_a_turn_and_is_part_of_it(policy: TransformersPolicy):
    """The model's second token is the stop token: two are generated."""
    (free,) = _generate(policy, [[[5, 20]]], concurrency=1)[0]
    stop = free.token_ids[1]
    assert stop != free.token_ids[0]

    async def run() -> Generation:
        sampler = SlotSampler(policy.model, stop_ids=(stop,), concurrency=1, max_context=1024)
        async with sampler:
            return await sampler.open().generate(Prompt(new_ids=[5, 20]), _sampling(0))

    generation = asyncio.run(run())
    assert (generation.token_ids, generation.stop) == (free.token_ids[:2], "stop")
    assert generation.logprobs == pytest.approx(free.logprobs[:2])  # type: ignore[index]


def test_a_conversation_longer_than_the_first_cache_stays_exact(policy: TransformersPolicy):
    """600 prompt tokens, room for 512 at first; beside it a short one, before and after the cache has grown."""
    prompt = [8 + k % 200 for k in range(600)]
    (long,), (short,) = _generate(policy, [[prompt], [PROMPTS[2]]], concurrency=2)
    assert np.abs(np.array(long.logprobs) - _exact(policy, prompt, long)).max() < 1e-5
    assert np.abs(np.array(short.logprobs) - _exact(policy, PROMPTS[2], short)).max() < 1e-5


def test_a_closed_conversation_gives_its_slot_to_the_last_without_a_change(policy: TransformersPolicy):
    """Of three the first is closed between two turns: the third moves into its slot and continues as if alone."""
    alone = _generate(policy, [[p, [50, 51]] for p in PROMPTS[1:4]], concurrency=3)

    async def run() -> list[Generation]:
        async with _opened(policy, concurrency=3) as sampler:
            sessions = [sampler.open() for _ in range(3)]
            turns = [
                s.generate(Prompt(new_ids=p), _sampling(k))
                for k, (s, p) in enumerate(zip(sessions, PROMPTS[1:4], strict=True))
            ]
            await asyncio.gather(*turns)
            assert [session.slot for session in sessions] == [0, 1, 2]
            sessions[0].close()
            sessions[0].close()  # a second time has no effect
            assert [session.slot for session in sessions] == [None, 1, 0]
            later = [sessions[k].generate(Prompt(new_ids=[50, 51]), _sampling(k)) for k in (1, 2)]
            return list(await asyncio.gather(*later))

    assert [turn.token_ids for turn in asyncio.run(run())] == [alone[k][1].token_ids for k in (1, 2)]


def test_a_failure_of_the_model_reaches_every_waiting_turn(policy: TransformersPolicy):
    """One slot and two conversations, one active and one waiting; then it generates again."""
    (alone,) = _generate(policy, [[PROMPTS[2]]], concurrency=1)[0]
    calls: list[int] = []

    class Failing:
        """A model that fails in its second pass."""

        def __getattr__(self, name: str) -> object:
            return getattr(policy.model, name)

        def __call__(self, **inputs: object) -> object:
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("no memory")
            return policy.model(**inputs)

    async def run() -> Generation:
        sampler = SlotSampler(Failing(), stop_ids=(1,), concurrency=1, max_context=1024)  # type: ignore[arg-type]
        async with sampler:
            asyncio.get_running_loop().set_exception_handler(lambda loop, problem: None)
            active, waiting = sampler.open(), sampler.open()
            turns = [s.generate(Prompt(new_ids=PROMPTS[0]), _sampling(0)) for s in (active, waiting)]
            failures = await asyncio.gather(*turns, return_exceptions=True)
            assert [str(failure) for failure in failures] == ["no memory", "no memory"]
            active.close()
            return await sampler.open().generate(Prompt(new_ids=PROMPTS[2]), _sampling(0))

    assert asyncio.run(run()).token_ids == alone.token_ids


def test_a_closed_sampler_computes_no_more(policy: TransformersPolicy):
    """Its context ends during a turn: the turn is cancelled."""

    async def run() -> int:
        async with _opened(policy, concurrency=1) as sampler:
            turn = asyncio.create_task(sampler.open().generate(Prompt(new_ids=[5, 20]), _sampling(0, tokens=500)))
            while sampler.tokens_generated < 2:
                await asyncio.sleep(0)
        generated = sampler.tokens_generated
        with pytest.raises(asyncio.CancelledError):
            await turn
        for _ in range(20):
            await asyncio.sleep(0)
        assert sampler.tokens_generated == generated
        return generated

    assert asyncio.run(asyncio.wait_for(run(), 240)) < 500


def test_heads_may_be_wider_than_their_share_of_the_model(policy: TransformersPolicy):
    """Four heads of 16 numbers in layers of 32, two of keys and values: exact at both turns."""
    config = copy.deepcopy(policy.model.config)
    config.head_dim = 16
    torch.manual_seed(0)
    wide = TransformersPolicy(LlamaForCausalLM(config), policy.tokenizer)
    assert wide.model.model.layers[0].self_attn.k_proj.weight.shape == (32, 32)
    first, second = _generate(wide, [[[5, 20, 31], [77, 78, 79]]], concurrency=1)[0]
    heard = [5, 20, 31, *first.token_ids, 77, 78, 79]
    assert np.abs(np.array(first.logprobs) - _exact(wide, [5, 20, 31], first)).max() < 1e-5
    assert np.abs(np.array(second.logprobs) - _exact(wide, heard, second)).max() < 1e-5
