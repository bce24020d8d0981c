"""On a GPU: a rollout and an update of a 1.5 B model within 8 GB, and updates' memory against its estimates."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo.config.training import TrainingSettings
from grpo.learner.estimates.memory import memory_estimate
from grpo.learner.estimates.model_sizes import ModelSizes
from grpo.policy.policy import Prompt, Sampling
from grpo.policy.tokenizer import load_tokenizer
from grpo.policy.transformers.adapters import add_adapters
from grpo.policy.transformers.dtype import cast_frozen
from grpo.policy.transformers.model import TransformersPolicy
from grpo.renderers.chat_template import Renderer
from tests.benchmarks.desk import MODEL
from tests.benchmarks.growth import trajectories
from tests.benchmarks.measure import apart, device_seconds
from tests.benchmarks.page import Table
from tests.benchmarks.step import our_step

QWEN2_5_1_5B = Qwen2Config(
    hidden_size=1536,
    num_hidden_layers=28,
    num_attention_heads=12,
    num_key_value_heads=2,
    intermediate_size=8960,
    vocab_size=151936,
    tie_word_embeddings=True,
    max_position_embeddings=2048,
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=0,
)
LIMIT = 8 * 10**9
"""Bytes that PyTorch may allocate in the process of the recipe."""
LENGTH, EPISODES = 1024, 32
"""Tokens of an episode and concurrent episodes; the batch of a step has 64 episodes."""
GIGABYTE = 1e9
RECIPES: dict[str, dict[str, object]] = {
    "adapters, r 16": {"lora": {"r": 16}, "gradient_checkpointing": True, "microbatch_tokens": 2048},
    "adapters, r 16, activations kept": {"lora": {"r": 16}, "microbatch_tokens": 1024},
    "all weights": {"gradient_checkpointing": True, "microbatch_tokens": 2048},
}
"""Settings of training by name. The first two have to fit into `LIMIT`, and the third is not limited."""


@dataclass(frozen=True)
class Measured:
    """Peaks of the memory that PyTorch allocated, in bytes, and what was done."""

    loaded: int
    rollout: int
    step: int
    estimate: int
    rollout_s: float
    step_s: float


def memory_table() -> Table:
    """Each recipe in a process of its own."""
    head = ("trained", "limit GB", "loaded GB", "rollout GB", "step GB", "estimate GB", "rollout s", "step s")
    rows = []
    for name, settings in RECIPES.items():
        limit = LIMIT if "lora" in settings else None
        measured = apart(measure_recipe, settings, limit)
        peaks = (measured.loaded, measured.rollout, measured.step, measured.estimate)
        rows.append(
            (
                name,
                "none" if limit is None else f"{limit / GIGABYTE:.0f}",
                *(f"{peak / GIGABYTE:.2f}" for peak in peaks),
                f"{measured.rollout_s:.1f}",
                f"{measured.step_s:.1f}",
            )
        )
    return Table(head=head, rows=tuple(rows))


def measure_recipe(given: dict[str, object], limit: int | None) -> Measured:
    """Play `EPISODES` episodes of one turn, and take two steps on 64 of `LENGTH` tokens, of which the second counts.

    The model has random weights. As in a run, it is loaded in float32, and its weights under adapters are rounded to
    bfloat16 after that. If PyTorch has to allocate more than the limit, it raises `torch.OutOfMemoryError`.
    """
    device = torch.device("cuda")
    if limit is not None:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(device).total_memory)
    settings = TrainingSettings.model_validate({"precision": "bf16", "importance_sampling_cap": 2.0, **given})
    torch.manual_seed(0)
    with device:
        policy = TransformersPolicy(Qwen2ForCausalLM(QWEN2_5_1_5B), load_tokenizer(MODEL))
    if settings.lora is not None:
        add_adapters(policy.model, settings.lora, seed=0)
        cast_frozen(policy.model, "bfloat16")
    trained = [parameter.numel() for parameter in policy.model.parameters() if parameter.requires_grad]
    sizes = ModelSizes(
        config=policy.model.config,
        parameters=sum(parameter.numel() for parameter in policy.model.parameters()),
        trained=sum(trained),
        trained_tensors=len(trained),
    )
    estimate = memory_estimate(
        sizes, settings, episodes=EPISODES, max_context=LENGTH, dtype="float32" if settings.lora is None else "bfloat16"
    )
    # no reference is held here, nor the policy that sampled, which the estimate counts as copies
    held = estimate.weights // estimate.copies
    loaded = _peak()
    rollout_s = device_seconds(partial(_play, policy))
    rollout = _peak()
    step = our_step(policy.model, trajectories(8, 4, LENGTH, groups=8), settings, on_policy=False)
    step()
    torch.cuda.reset_peak_memory_stats()
    step_s = device_seconds(step)
    return Measured(
        loaded=loaded,
        rollout=rollout,
        step=_peak(),
        estimate=held + estimate.gradients + estimate.optimizer + (estimate.activations or 0),
        rollout_s=rollout_s,
        step_s=step_s,
    )


def _peak() -> int:
    """Peak of the memory that PyTorch allocated since the last call, in bytes."""
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak


def _play(policy: TransformersPolicy) -> None:
    """Episodes of one turn that fill the context."""
    renderer = Renderer(load_tokenizer(MODEL))
    prompt = LENGTH // 2

    async def run() -> None:
        async with policy.sampler(concurrency=EPISODES, renderer=renderer) as sampler:

            async def episode(index: int) -> None:
                session = sampler.open()
                ids = np.random.default_rng(index).integers(8, 700, prompt).tolist()
                sampling = Sampling(temperature=1.0, max_new_tokens=LENGTH - prompt, seed=index)
                await session.generate(Prompt(new_ids=ids), sampling)
                session.close()

            await asyncio.gather(*(episode(index) for index in range(EPISODES)))

    asyncio.run(run())
