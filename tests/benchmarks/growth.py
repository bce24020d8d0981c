"""Growth of the learner's step with group size, turns and length."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedModel

from grpo.config.training import TrainingSettings
from grpo.learner.batch import Sample
from tests.benchmarks.desk import desk_policy, quickstart
from tests.benchmarks.measure import in_turn, seconds
from tests.benchmarks.page import Findings, Table
from tests.benchmarks.step import our_step

GROUPS, PROMPT, TURN = 2, 64, 24
"""Groups of a batch, tokens of a prompt, and tokens said in a turn; as many are heard after it."""
GROUP_SIZES, TURNS, LENGTHS = (4, 8, 16, 32), (1, 2, 4, 8), (128, 256, 512, 1024)
REPEATS = 3


def trajectories(siblings: int, turns: int, length: int | None = None, *, groups: int = GROUPS) -> list[Sample]:
    """Random tokens in the shape of conversations: a prompt that siblings share, then turns that are said and heard.

    `length` stretches the turns so that a whole trajectory has so many tokens.
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
    tables = tuple(_curve(name, by_size, model, settings) for name, by_size in shapes.items())
    worst = max(float(table.rows[-1][-1]) for table in tables)
    return Findings(
        title="How the step grows",
        text=(
            f"A step on {GROUPS} groups of synthetic trajectories; 8 siblings, 4 turns and {PROMPT + 8 * TURN} tokens "
            "unless stated otherwise. New tokens are those that stand once: a prompt that siblings share counts "
            "once. Growth is seconds a new token, in parts of the first row's; at most 1 is linear or better. "
            f"The worst last row has {worst:.2f}."
        ),
        tables=tables,
    )


def _curve(name: str, by_size: dict[int, list[Sample]], model: PreTrainedModel, settings: TrainingSettings) -> Table:
    steps = {size: our_step(model, samples, settings, on_policy=False) for size, samples in by_size.items()}
    for step in steps.values():
        step()
    taken = in_turn({size: lambda step=step: seconds(step) for size, step in steps.items()}, repeats=REPEATS)
    rows, first = [], None
    for size, samples in by_size.items():
        tokens = new_tokens(samples)
        each = taken[size] / tokens
        first = first or each
        rows.append((str(size), f"{tokens:,}", f"{taken[size]:.3f}", f"{1e6 * each:.1f}", f"{each / first:.2f}"))
    return Table(head=(name, "new tokens", "s", "µs a new token", "growth"), rows=tuple(rows))


def new_tokens(samples: list[Sample]) -> int:
    """Tokens of which the model must form a state: shared prompts once."""
    cut = [(sample, int(sample.loss_mask.argmax())) for sample in samples]
    prompts = {sample.token_ids[:start].tobytes(): start for sample, start in cut}
    return sum(prompts.values()) + sum(len(sample.token_ids) - start for sample, start in cut)
