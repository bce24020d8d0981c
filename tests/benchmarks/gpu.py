"""On a GPU: rollout and step of a Qwen3-0.6B-shaped model, and what limits them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.generation import ContinuousBatchingConfig

from grpo.config.training import TrainingSettings
from grpo.learner.performance import model_flops_utilization
from grpo.policy.policy import Policy, Prompt, Sampling
from grpo.policy.tokenizer import load_tokenizer
from grpo.policy.transformers.model import TransformersPolicy
from grpo.renderers.chat_template import Renderer
from tests.benchmarks import gpu_memory
from tests.benchmarks.against_trl import make_trainer, trl_inputs, trl_step
from tests.benchmarks.desk import MODEL
from tests.benchmarks.growth import attended_tokens, trajectories
from tests.benchmarks.measure import device_seconds, in_turn
from tests.benchmarks.page import Findings, Table
from tests.benchmarks.step import our_step
from tests.benchmarks.usual import ContinuousPolicy, GeneratePolicy

QWEN3_0_6B = Qwen3Config(
    hidden_size=1024,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=3072,
    vocab_size=151936,
    tie_word_embeddings=True,
    max_position_embeddings=1024,
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=0,
)
BATCHES = (64, 128, 256, 512)
PROMPT, TURNS, SHORTEST, LONGEST, HEARD = 192, 2, 32, 96, 32
"""Tokens of a prompt, turns of a conversation, tokens of a turn (drawn between these), and tokens of a reply."""
SIBLINGS = 8
CALL_ROWS = 128
"""Conversations in one call of `generate`."""
STEP_ROWS = (8, 16)
SWAP_BATCHES = (64, 256)
REPEATS = 3
IDLE = 0.8
"""Below this share of time at work the GPU waits for the CPU to launch kernels."""
BANDWIDTH = {"H200": 4.8e12, "H100": 3.35e12, "A100": 2.04e12, "L40S": 0.864e12, "L4": 0.3e12, "A10": 0.6e12}
"""Bytes a second by the vendor's data sheet (SXM), the longer names first."""


def measure() -> Findings:
    """Both tables, or the reason for their absence."""
    if not torch.cuda.is_available():
        return Findings(title="On a GPU", text="Not measured: PyTorch sees no CUDA device on this machine.")
    device = torch.device("cuda")
    return Findings(
        title="On a GPU",
        text=(
            f"{torch.cuda.get_device_name(device)}, a model of Qwen3-0.6B's shape with random weights. Rollout: groups "
            f"of {SIBLINGS}, prompts of {PROMPT} tokens, {TURNS} turns of {SHORTEST} to {LONGEST} tokens, replies of "
            f"{HEARD}, weights in bfloat16. The limit is what the memory's bandwidth allows: each pass reads the "
            "weights and the keys and values of all conversations once. Step: 8 groups of 8, passes in bfloat16 with "
            "weights in float32, without and with a copy of the weights rounded to bfloat16. New weights: the "
            f"whole rollout of {SWAP_BATCHES} conversations, and with other weights in the middle of a turn, after "
            f"which each conversation is read again. Medians of {REPEATS}, runs alternate. Memory: a model of the "
            f"shape of Qwen2.5-1.5B with random weights, 64 episodes of {gpu_memory.LENGTH} tokens, and what PyTorch "
            "allocates at most. A process with a limit may not allocate more."
        ),
        tables=(
            rollout_table(device, QWEN3_0_6B, BATCHES),
            step_table(device, QWEN3_0_6B),
            swap_table(device, QWEN3_0_6B),
            gpu_memory.memory_table(),
        ),
    )


def rollout_table(device: torch.device, shape: Qwen3Config, batches: Sequence[int]) -> Table:
    """Tokens said a second by each side, and what share of the memory's limit ours is."""
    torch.manual_seed(0)
    plain = Qwen3ForCausalLM(shape).to(device, torch.bfloat16).eval()
    plain.set_attn_implementation("sdpa")
    tokenizer = load_tokenizer(MODEL)
    policy = TransformersPolicy(copy.deepcopy(plain), tokenizer)
    paged = ContinuousPolicy(
        copy.deepcopy(plain), tokenizer, ContinuousBatchingConfig(page_size=16, return_logprobs=True), _sampling(0, 0)
    )
    sides: dict[str, Policy] = {
        "ours": policy,
        "generate": GeneratePolicy(plain, tokenizer, CALL_ROWS),
        "continuous": paged,
    }
    head = ("conversations", "ours, tokens/s", "`generate`", "continuous batching", "limit", "ours of it", "limited by")
    return Table(head=head, rows=tuple(_rollout_row(sides, policy, batch) for batch in batches))


def _rollout_row(sides: dict[str, Policy], ours: TransformersPolicy, batch: int) -> tuple[str, ...]:
    """The first play of each side warms it up."""
    plays = {name: partial(_converse, make_inference_backend, batch) for name, make_inference_backend in sides.items()}
    for play in plays.values():
        play()
    taken = in_turn({name: partial(device_seconds, play) for name, play in plays.items()}, repeats=REPEATS)
    said = sum(_sampling(index, turn).max_new_tokens for index in range(batch) for turn in range(TURNS))
    limit = _bandwidth_limit(ours, batch)
    told = ("unknown", "unknown") if limit is None else (f"{limit:,.0f}", f"{said / taken['ours'] / limit:.0%}")
    busy = _busy_share(plays["ours"], ours.model.device)
    speeds = tuple(f"{said / taken[name]:,.0f}" for name in sides)
    return (str(batch), *speeds, *told, _limited_by(busy, "reading weights, keys and values"))


def _sampling(conversation: int, turn: int) -> Sampling:
    """Random weights never stop by themselves: how long a turn is, is drawn."""
    length = int(np.random.default_rng([conversation, turn]).integers(SHORTEST, LONGEST + 1))
    return Sampling(temperature=1.0, max_new_tokens=length, seed=conversation)


def _converse(make_inference_backend: Policy, batch: int, *, replacement: TransformersPolicy | None = None) -> None:
    """Play `batch` conversations with a world that answers at once.

    The sampler goes on with the weights of a replacement when the first turn ends, while other turns are in progress.
    """
    renderer = Renderer(load_tokenizer(MODEL))

    def tokens(count: int, *seed: int) -> list[int]:
        return np.random.default_rng(seed).integers(8, 700, count).tolist()

    async def run() -> None:
        async with make_inference_backend.sampler(concurrency=batch, renderer=renderer) as sampler:

            async def conversation(index: int) -> None:
                session = sampler.open()
                heard = tokens(PROMPT, index // SIBLINGS)
                for turn in range(TURNS):
                    await session.generate(Prompt(new_ids=heard), _sampling(index, turn))
                    if replacement is not None and replacement.hash != sampler.policy_hash:  # type: ignore[attr-defined]
                        sampler.replace_model(replacement.model, replacement.hash)  # type: ignore[attr-defined]
                    heard = tokens(HEARD, index, turn)
                session.close()

            await asyncio.gather(*(conversation(index) for index in range(batch)))

    asyncio.run(run())


def _bandwidth_limit(policy: TransformersPolicy, batch: int) -> float | None:
    """Tokens a second at which the memory has nothing else to do; None where its bandwidth is not known."""
    bandwidth = _of_device(BANDWIDTH, policy.model.device)
    if bandwidth is None:
        return None
    config = policy.model.config
    weights = sum(parameter.numel() * parameter.element_size() for parameter in policy.model.parameters())
    context = PROMPT + TURNS * (SHORTEST + LONGEST) / 4 + (TURNS - 1) * HEARD / 2  # on average over a conversation
    each = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim  # keys, values; 2 bytes
    return batch * bandwidth / (weights + batch * context * each)


def step_table(device: torch.device, shape: Qwen3Config) -> Table:
    """Tokens a second and MFU of one step, ours and TRL's."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(shape).to(device)
    tokenizer = load_tokenizer(MODEL)
    samples = trajectories(8, 4, 512, groups=8)
    tokens = sum(len(sample.token_ids) for sample in samples)
    settings = TrainingSettings(precision="bf16", importance_sampling_cap=2.0)
    policy = TransformersPolicy(copy.deepcopy(model), tokenizer)
    rounded = policy.in_dtype("bfloat16").model
    model.set_attn_implementation("sdpa")
    steps: dict[str, Callable[[], float]] = {
        "ours": our_step(policy.model, samples, settings, on_policy=False),
        "ours, weights rounded to bfloat16": our_step(rounded, samples, settings, master=policy.model, on_policy=False),
    }
    inputs = trl_inputs(samples, device=device)
    for rows in STEP_ROWS:
        trainer = make_trainer(copy.deepcopy(model), tokenizer, rows=rows, checkpointing=False, half=True)
        steps[f"TRL, {rows} episodes a pass"] = partial(trl_step, trainer, inputs, rows=rows)
    for step in steps.values():
        step()
    taken = in_turn({name: partial(device_seconds, step) for name, step in steps.items()}, repeats=REPEATS)
    table = []
    for name, step in steps.items():
        # the synthetic trajectories are of one length: no padding
        passed = len(attended_tokens(samples)) if name.startswith("ours") else tokens
        mfu = model_flops_utilization(model, tokens_per_s=passed / taken[name], precision="bf16")
        told = "unknown" if mfu is None else f"{mfu:.0%}"
        busy = _busy_share(step, device)
        table.append(
            (name, f"{taken[name]:.3f}", f"{tokens / taken[name]:,.0f}", told, _limited_by(busy, "its kernels"))
        )
    return Table(head=("step", "s", "tokens/s", "MFU", "limited by"), rows=tuple(table))


def swap_table(device: torch.device, shape: Qwen3Config) -> Table:
    """Seconds of a rollout with the same weights, and with other weights in the middle of a turn."""
    torch.manual_seed(0)
    tokenizer = load_tokenizer(MODEL)
    policies = [
        TransformersPolicy(Qwen3ForCausalLM(shape).to(device, torch.bfloat16).eval(), tokenizer) for _ in range(2)
    ]
    rows = []
    for batch in SWAP_BATCHES:
        plays = {
            "same": partial(_converse, policies[0], batch),
            "other": partial(_converse, policies[0], batch, replacement=policies[1]),
        }
        for play in plays.values():
            play()
        taken = in_turn({name: partial(device_seconds, play) for name, play in plays.items()}, repeats=REPEATS)
        rows.append(
            (str(batch), f"{taken['same']:.2f}", f"{taken['other']:.2f}", f"{taken['other'] - taken['same']:.2f}")
        )
    return Table(head=("conversations", "s", "s with new weights", "difference, s"), rows=tuple(rows))


def _busy_share(act: Callable[[], object], device: torch.device) -> float | None:
    """Share of the time in which kernels run; None without a GPU."""
    if device.type != "cuda":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        taken = device_seconds(act)
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1e6 / taken


def _limited_by(busy: float | None, work: str) -> str:
    if busy is None:
        return "unknown"
    if busy < IDLE:
        return f"the CPU, which launches kernels: the GPU works {busy:.0%} of the time"
    return f"{work}: the GPU works {min(busy, 1.0):.0%} of the time"


def _of_device(known: dict[str, float], device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((value for key, value in known.items() if key in name), None)
