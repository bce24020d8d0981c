"""Growth of the learner's step with group size, turns and length."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedModel

from grpo.config.training import TrainingSettings
from grpo.learner.batch import Sample
from grpo.policy.catalog import load_weights
from tests.benchmarks.desk import desk_policy, quickstart
from tests.benchmarks.measure import apart, in_turn, seconds, use_all_cores
from tests.benchmarks.page import Findings, Table
from tests.benchmarks.step import our_step
from tests.benchmarks.triage import triage_config
from tests.places import ROOT

GROUPS, PROMPT, TURN = 2, 64, 24
"""Groups of a batch, tokens of a prompt, and completion tokens of a turn; the environment's reply has as many."""
GROUP_SIZES, TURNS, LENGTHS = (4, 8, 16, 32), (1, 2, 4, 8), (128, 256, 512, 1024)
REAL_SHAPES = {128: (8, 8), 1024: (1, 4), 4096: (1, 1)}
"""Groups and siblings by the length of a trajectory, for the real model: about 4,000 new tokens each."""
REPEATS = 3


def trajectories(siblings: int, turns: int, length: int | None = None, *, groups: int = GROUPS) -> list[Sample]:
    """Random tokens in the shape of conversations: a prompt that siblings share, then turns that are said and heard.

    `length` stretches the turns so that a whole trajectory has this many tokens.
    """
    rng = np.random.default_rng(0)
    turn = TURN if length is None else (length - PROMPT) // (2 * turns)
    samples = []
    for _ in range(groups):
        prompt = rng.integers(8, 700, PROMPT)
        for _ in range(siblings):
            mask = np.concatenate([np.zeros(PROMPT, dtype=np.bool_), np.tile(np.repeat([True, False], turn), turns)])
            tokens = np.concatenate([prompt, rng.integers(8, 700, len(mask) - PROMPT)])
            samples.append(
                Sample(
                    token_ids=tokens.astype(np.int32),
                    loss_mask=mask,
                    sampler_logprobs=np.zeros(len(mask), dtype=np.float32),
                    advantages=(np.float32(rng.normal()) * mask).astype(np.float32),
                    temperature=1.0,
                    place="synthetic",
                )
            )
    return samples


def measure() -> Findings:
    """Seconds of a step for each shape, all shapes in turn."""
    settings, model = quickstart().training, desk_policy().model
    shapes = {
        "group size": {size: trajectories(size, 4) for size in GROUP_SIZES},
        "turns": {turns: trajectories(8, turns) for turns in TURNS},
        "tokens of a trajectory": {length: trajectories(8, 4, length) for length in LENGTHS},
    }
    tables = [_curve(name, by_size, model, settings) for name, by_size in shapes.items()]
    if (ROOT / triage_config().policy.model).exists():
        tables.append(apart(_real_curve))
    return Findings(
        title="How the step grows",
        text=(
            f"A step on {GROUPS} groups of synthetic trajectories; 8 siblings, 4 turns and {PROMPT + 8 * TURN} tokens "
            "unless stated otherwise; the last table has SmolLM2-135M-Instruct and about 4,000 new tokens in each row. "
            "New tokens are those of which a state is needed: a prompt that siblings share counts once. Growth is "
            "seconds per new token as a multiple of the first row's. FLOPs are those of a new token by arithmetic, "
            "as a multiple of the first row's: 6 for each weight, and 12 for each layer, dimension of its heads and "
            "token that it attends to. Growth above them is overhead, and below them better use of the processor."
        ),
        tables=tuple(tables),
    )


def _real_curve() -> Table:
    """Growth with length for the model of `make real`, all weights trained."""
    use_all_cores()
    config = triage_config()
    by_length = {
        length: trajectories(siblings, 4, length, groups=groups) for length, (groups, siblings) in REAL_SHAPES.items()
    }
    model = load_weights(str(ROOT / config.policy.model), chat_template=config.policy.chat_template).model
    return _curve("tokens of a trajectory, 135 M model", by_length, model, config.training)


def _curve(name: str, by_size: dict[int, list[Sample]], model: PreTrainedModel, settings: TrainingSettings) -> Table:
    steps = {size: our_step(model, samples, settings, on_policy=False) for size, samples in by_size.items()}
    for step in steps.values():
        step()
    taken = in_turn({size: lambda step=step: seconds(step) for size, step in steps.items()}, repeats=REPEATS)
    rows, first = [], None
    for size, samples in by_size.items():
        contexts = attended_tokens(samples)
        each = taken[size] / len(contexts), flops_per_token(model, contexts)
        first = first or each
        growth, flops = (value / start for value, start in zip(each, first, strict=True))
        shown = f"{len(contexts):,}", f"{taken[size]:.3f}", f"{1e6 * each[0]:.1f}", f"{growth:.2f}", f"{flops:.2f}"
        rows.append((str(size), *shown))
    return Table(head=(name, "new tokens", "s", "µs per new token", "growth", "FLOPs"), rows=tuple(rows))


def attended_tokens(samples: list[Sample]) -> list[int]:
    """Number of tokens that each new token attends to, itself included.

    New tokens are those of which the model must form a state: a shared prompt's once, and none from a trajectory's last
    token with a loss on.
    """
    contexts, prompts = [], set()
    for sample in samples:
        losses = sample.loss_mask.nonzero()[0]
        start, end = int(losses[0]), int(losses[-1])
        prompt = sample.token_ids[:start].tobytes()
        contexts += range(start + 1 if prompt in prompts else 1, end + 1)
        prompts.add(prompt)
    return contexts


def flops_per_token(model: PreTrainedModel, contexts: list[int]) -> float:
    """Operations of a forward and a backward pass for an average token of a model with full attention."""
    config = model.config
    width = config.num_attention_heads * config.head_dim
    weights = sum(parameter.numel() for parameter in model.parameters())
    return 6 * weights + 12 * config.num_hidden_layers * width * float(np.mean(contexts))
