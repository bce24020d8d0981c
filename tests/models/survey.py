"""Rollout, learner, checkpoint, registration and adapters of one family's tiny model against its own plain forward."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo.algorithms.reductions import Denominators
from grpo.config.training import LoraSettings, TrainingSettings
from grpo.errors import PolicyError
from grpo.learner.batch import Sample
from grpo.learner.checkpoints import resume, save
from grpo.learner.learner import Learner
from grpo.learner.logprobs import compute_logprobs
from grpo.policy.policy import Generation, Prompt, Sampling, Session
from grpo.policy.transformers.adapters import add_adapters, merge_adapters
from grpo.policy.transformers.forward.passes import microbatches
from grpo.policy.transformers.model import TransformersPolicy, load, weights_hash
from grpo.pretrain.init_model import train_tokenizer
from grpo.registry import Registry
from grpo.renderers.chat_template import Renderer
from tests.models.families import tiny_model

TOLERANCE = 1e-4
"""Largest difference of a log-probability, and relative error of the gradient, that count as exact."""
TEMPERATURE = 0.8
NEW_TOKENS = 12
_PASS_TOKENS = 4096
_WORDS = ["hello there how are you", "my order 1234 is broken", '{"name": "look_up", "arguments": {"order": "1"}}']
_TOKENS = np.random.default_rng(7).integers(8, 200, 400).tolist()
CONVERSATIONS = [
    [_TOKENS[:40], _TOKENS[40:70], _TOKENS[70:75]],
    [_TOKENS[:40], _TOKENS[80:87], _TOKENS[90:115]],
    [[*_TOKENS[:20], *_TOKENS[120:127]], _TOKENS[130:160], [_TOKENS[160]]],
    [_TOKENS[200:203], _TOKENS[210:245], _TOKENS[250:262]],
]
"""Prompt tokens of each turn: two siblings, one that begins as they do, one of its own."""


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    """A tokenizer of 264 tokens, which every tiny model embeds."""
    return train_tokenizer(_WORDS * 20, vocabulary=250)


def plain_model(family: str) -> PreTrainedModel:
    """The family's model with its own attention, written out where the family has it."""
    model = tiny_model(family)
    model.set_attn_implementation("eager")
    return model


def plain_logprobs(model: PreTrainedModel, sample: Sample) -> torch.Tensor:
    """Log-probabilities of the loss tokens by one forward pass over the whole sequence, without a cache."""
    ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
    logits = model(input_ids=ids, use_cache=False).logits[0].float() / sample.temperature
    places = np.flatnonzero(sample.loss_mask)
    return torch.log_softmax(logits[places - 1], dim=-1).gather(1, ids[0, places][:, None])[:, 0]


def rollout(policy: TransformersPolicy, *, concurrency: int) -> list[list[Generation]]:
    """Generate three turns of each conversation, `concurrency` at a time."""

    async def converse(session: Session, seed: int, prompts: Sequence[Sequence[int]]) -> list[Generation]:
        sampling = Sampling(temperature=TEMPERATURE, max_new_tokens=NEW_TOKENS, seed=seed)
        turns = [await session.generate(Prompt(new_ids=ids), sampling) for ids in prompts]
        session.close()
        return turns

    async def run() -> list[list[Generation]]:
        async with policy.sampler(concurrency=concurrency, renderer=Renderer(policy.tokenizer)) as sampler:
            turns = [converse(sampler.open(), seed, prompts) for seed, prompts in enumerate(CONVERSATIONS)]
            if concurrency == 1:
                return [await conversation for conversation in turns]
            return list(await asyncio.gather(*turns))

    return asyncio.run(run())


def to_samples(conversations: Sequence[Sequence[Generation]]) -> list[Sample]:
    """Sequences of a rollout with the sampler's log-probabilities."""
    samples = []
    for index, (prompts, turns) in enumerate(zip(CONVERSATIONS, conversations, strict=True)):
        ids: list[int] = []
        mask: list[bool] = []
        logprobs: list[float] = []
        for prompt, turn in zip(prompts, turns, strict=True):
            assert turn.logprobs is not None
            ids += [*prompt, *turn.token_ids]
            mask += [False] * len(prompt) + [True] * len(turn.token_ids)
            logprobs += [0.0] * len(prompt) + turn.logprobs
        samples.append(
            Sample(
                token_ids=np.array(ids, dtype=np.int32),
                loss_mask=np.array(mask),
                sampler_logprobs=np.array(logprobs, dtype=np.float32),
                advantages=np.where(mask, (1.0, -1.0, 0.5, -0.5)[index], 0).astype(np.float32),
                temperature=TEMPERATURE,
                place=f"conversation {index}",
            )
        )
    return samples


@torch.no_grad()
def rollout_difference(plain: PreTrainedModel, samples: Sequence[Sample]) -> float:
    """Largest difference of the sampler's log-probabilities."""
    pairs = [(sample.sampler_logprobs[sample.loss_mask], plain_logprobs(plain, sample).numpy()) for sample in samples]
    return max(float(np.abs(sampler - exact).max()) for sampler, exact in pairs)


def learner_differences(
    policy: TransformersPolicy, plain: PreTrainedModel, samples: Sequence[Sample]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Largest difference of log-probabilities, and relative error of the gradient of a weighted sum of them.

    Each with the samples together, and one at a time.
    """
    count = sum(int(sample.loss_mask.sum()) for sample in samples)
    weights = torch.randn(count, generator=torch.Generator().manual_seed(1))
    exact = torch.cat([plain_logprobs(plain, sample) for sample in samples])
    expected = _gradient(plain, (weights * exact).sum())
    differences, errors = [], []
    for computed in (learner_logprobs(policy, samples), torch.cat([learner_logprobs(policy, [s]) for s in samples])):
        gradient = _gradient(policy.model, (weights * computed).sum())
        differences.append(float((computed - exact).detach().abs().max()))
        errors.append(_relative_error(gradient, expected))
    return tuple(differences), tuple(errors)


def learner_logprobs(policy: TransformersPolicy, samples: Sequence[Sample]) -> torch.Tensor:
    """Log-probabilities of the loss tokens in passes as the learner makes them, in order of the samples."""
    of_sample: dict[str, torch.Tensor] = {}
    for micro in microbatches(policy.model, samples, max_tokens=_PASS_TOKENS):
        lengths = [int(sample.loss_mask.sum()) for sample in micro]
        parts = torch.split(compute_logprobs(policy.model, micro).logprobs, lengths)
        of_sample |= {sample.place: part for sample, part in zip(micro, parts, strict=True)}
    return torch.cat([of_sample[sample.place] for sample in samples])


def _gradient(model: PreTrainedModel, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _relative_error(gradient: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm; a weight without a gradient counts as 0."""
    difference = sum(
        float((gradient.get(name, torch.zeros(())) - expected.get(name, torch.zeros(()))).double().pow(2).sum())
        for name in gradient.keys() | expected.keys()
    )
    return float((difference / sum(float(g.double().pow(2).sum()) for g in expected.values())) ** 0.5)


def checkpoint_difference(family: str, samples: Sequence[Sample]) -> float:
    """A step, a checkpoint of it, and the policy and the learner that are loaded from it."""
    policy = TransformersPolicy(tiny_model(family), tokenizer())
    learner = step(policy, samples)
    with tempfile.TemporaryDirectory() as folder:
        save(policy, learner, Path(folder), parent="base")
        loaded = load(Path(folder))
        resume(Learner(loaded.model, TrainingSettings()), Path(folder))
    return _difference(loaded, policy, samples)


def adapter_differences(family: str, samples: Sequence[Sample]) -> tuple[int, float]:
    """Number of adapted weights, and how far the merged and the reloaded model are from the one with adapters.

    Raises `PolicyError` where a step changes a weight of the base or no adapter.
    """
    policy = TransformersPolicy(tiny_model(family), tokenizer())
    with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as folder:
        policy.save(Path(base))
        add_adapters(policy.model, LoraSettings(r=4, target_modules="all-linear"), seed=0)
        before = {name: parameter.detach().clone() for name, parameter in policy.model.named_parameters()}
        learner = step(policy, samples)
        changed = {name for name, tensor in policy.model.named_parameters() if not torch.equal(tensor, before[name])}
        if any("lora_" not in name for name in changed) or not any("lora_B" in name for name in changed):
            raise PolicyError(f"a step with adapters changed {sorted(changed)[:3]}")
        save(policy, learner, Path(folder), parent="base")
        loaded = load(Path(folder), base=Path(base))
    with torch.no_grad():
        adapted_logprobs = learner_logprobs(policy, samples)
        merged = TransformersPolicy(merge_adapters(policy.model), tokenizer())
        difference = float((learner_logprobs(merged, samples) - adapted_logprobs).abs().max())
    return sum("lora_B" in name for name in before), max(difference, _difference(loaded, policy, samples))


def step(policy: TransformersPolicy, samples: Sequence[Sample]) -> Learner:
    """One optimizer step on the policy, whose hash follows."""
    learner = Learner(policy.model, TrainingSettings(learning_rate=1e-2))
    tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
    denominators = Denominators(sequences=len(samples), tokens=tokens, normalizer=NEW_TOKENS)
    learner.step(samples, denominators, on_policy=False)
    policy.hash = weights_hash(policy.model)
    return learner


@torch.no_grad()
def _difference(loaded: TransformersPolicy, policy: TransformersPolicy, samples: Sequence[Sample]) -> float:
    """Largest difference of the log-probabilities of a reloaded policy; raises `PolicyError` for another hash."""
    if loaded.hash != policy.hash:
        raise PolicyError(f"the checkpoint holds policy {loaded.hash}, expected {policy.hash}")
    return float((learner_logprobs(loaded, samples) - learner_logprobs(policy, samples)).abs().max())


@torch.no_grad()
def registration_difference(family: str, samples: Sequence[Sample], *, folder: Path) -> float:
    """The policy logged as MLflow's chat model in a folder, and the plain forward of what MLflow loads from there."""
    import mlflow.transformers

    from grpo.registry.chat_model import log_chat_model
    from tests.grpo.registry.making import make_provenance

    policy = TransformersPolicy(tiny_model(family), tokenizer())
    run = open_registry(folder).open_run("models", family, run_key=family, params={})
    address, _ = log_chat_model(policy, run, make_provenance())
    loaded = mlflow.transformers.load_model(address, return_type="components", dtype=torch.float32)["model"]
    loaded.set_attn_implementation("eager")
    plain = plain_model(family)
    pairs = [(plain_logprobs(loaded.eval(), sample), plain_logprobs(plain, sample)) for sample in samples]
    return max(float((registered - exact).abs().max()) for registered, exact in pairs)


def open_registry(folder: Path) -> Registry:
    """A registry without a server, created on first use."""
    return Registry(f"sqlite:///{folder}/mlflow.db", artifact_root=f"file://{folder}/artifacts")
