"""One GRPO iteration of triage with SmolLM2-135M-Instruct: rollout and update, against `generate` and TRL's step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from grpo.algorithms.reductions import Denominators
from grpo.config.pipeline import PipelineConfig
from grpo.learner.batch import Sample, build_batch, make_minibatches
from grpo.learner.learner import Learner
from grpo.policy.policy import Policy
from grpo.policy.transformers.model import TransformersPolicy
from grpo.rewards.catalog import make_composite_reward
from grpo.rewards.score import score
from grpo.trajectories import Trajectory, group
from tests.benchmarks.against_trl import make_trainer, plain_model, trl_inputs, trl_step
from tests.benchmarks.measure import in_turn, seconds, use_all_cores
from tests.benchmarks.page import Findings, Table, Versus
from tests.benchmarks.triage import fine_tuned, play_triage, triage_config, triage_scenarios
from tests.benchmarks.usual import GeneratePolicy
from tests.places import ROOT

CONVERSATIONS = (32, 64, 128)
"""Conversations in one call of `generate`."""
ROWS = (4, 8, 16)
"""Episodes in one of TRL's forward passes."""
REPEATS = 3


def measure() -> Findings:
    """Rollouts in turn, then updates in turn; the others in the fastest setting that was tried once."""
    config = triage_config()
    if not (ROOT / config.policy.model).exists():
        return Findings(title="An iteration with a real model", text="Not measured: `make real` fetches the model.")
    use_all_cores()
    with TemporaryDirectory() as folder:
        policy = fine_tuned(config, Path(folder))
        start = Path(folder) / "start"
        scenarios = triage_scenarios(config)
        played: list[Trajectory] = []

        def play(backend: Policy) -> float:
            return seconds(lambda: played.__setitem__(slice(None), play_triage(backend, config, scenarios)))

        model, tokenizer = plain_model(start)
        generate = {f"{n} at once": GeneratePolicy(model.eval(), tokenizer, n) for n in CONVERSATIONS}
        tried = {name: play(backend) for name, backend in generate.items()}
        rows = min(tried, key=lambda name: tried[name])
        rollout = in_turn({"ours": lambda: play(policy), "TRL": lambda: play(generate[rows])}, repeats=REPEATS)
        play(policy)
        batches = _batches(config, policy, played)
        mine = _our_steps(policy, batches, config)
        costs = {n: _least(_their_steps(start, batches[:1], n, half=False)) for n in ROWS}
        n = min(costs, key=lambda rows: costs[rows])
        half = _least(_their_steps(start, batches[:1], n, half=True)) < costs[n]
        fastest = f"{n} episodes a pass{', bfloat16' if half else ''}"
        theirs = _their_steps(start, batches, n, half=half)
        update = in_turn({"ours": lambda: seconds(mine), "TRL": lambda: seconds(theirs)}, repeats=REPEATS)
    said = sum(trajectory.completion_tokens for trajectory in played)
    total = {side: rollout[side] + update[side] for side in rollout}
    table = tuple(
        (name, f"{rollout[side]:.1f}", f"{said / rollout[side]:,.0f}", f"{update[side]:.1f}", f"{total[side]:.1f}")
        for side, name in (("ours", "ours, float32"), ("TRL", f"`generate`, {rows}; TRL, {fastest}"))
    )
    return Findings(
        title="An iteration with a real model",
        text=(
            f"SmolLM2-135M-Instruct after fine-tuning, {len(scenarios)} triage scenarios × {config.rollout.group_size} "
            f"episodes, {said:,} tokens generated, and {len(batches)} optimizer steps on the groups whose rewards "
            "differ. "
            f"The other side in the fastest setting that was tried; medians of {REPEATS}, runs alternate."
        ),
        tables=(Table(head=("side", "rollout s", "tokens/s", "update s", "iteration s"), rows=table),),
        gist=(
            Versus(
                measure="GRPO iteration, 135 M model",
                ours=f"{total['ours']:.1f} s",
                against=f"TRL {total['TRL']:.1f} s",
                ratio=total["TRL"] / total["ours"],
                bound=5,
            ),
            Versus(
                measure="rollout of it",
                ours=f"{said / rollout['ours']:,.0f} tokens/s",
                against=f"`generate` {said / rollout['TRL']:,.0f}",
                ratio=rollout["TRL"] / rollout["ours"],
                bound=3,
            ),
        ),
    )


def _least(act: Callable[[], None]) -> float:
    """Shorter of two calls, in seconds: the first one touches new memory."""
    return min(seconds(act), seconds(act))


def _batches(
    config: PipelineConfig, policy: TransformersPolicy, played: Sequence[Trajectory]
) -> list[tuple[Sample, ...]]:
    batch = build_batch(
        group(list(score(played, make_composite_reward(config.reward)))), config.training, policy_hash=policy.hash
    )
    steps = make_minibatches(batch.groups, config.training, rng=np.random.default_rng(0))
    return [tuple(step) for step in steps]


def _our_steps(
    policy: TransformersPolicy, batches: Sequence[Sequence[Sample]], config: PipelineConfig
) -> Callable[[], None]:
    """Optimizer steps on these batches, which may be repeated, since their learning rate is 0."""
    learner = Learner(policy.model, config.training.model_copy(update={"learning_rate": 0.0}))

    def act() -> None:
        for batch in batches:
            tokens = sum(int(sample.loss_mask.sum()) for sample in batch)
            learner.step(batch, Denominators(sequences=len(batch), tokens=tokens, normalizer=256), on_policy=False)

    act()  # warms up
    return act


def _their_steps(folder: Path, batches: Sequence[Sequence[Sample]], rows: int, *, half: bool) -> Callable[[], None]:
    """The same of TRL's trainer, `rows` episodes a pass."""
    model, tokenizer = plain_model(folder)
    trainer = make_trainer(model, tokenizer, rows=rows, checkpointing=False, half=half)
    inputs = [trl_inputs(batch, device=model.device) for batch in batches]

    def act() -> None:
        for part in inputs:
            trl_step(trainer, part, rows=rows)

    trl_step(trainer, inputs[0], rows=rows)  # warms up
    return act
