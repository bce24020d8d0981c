"""Training on users' corrections, against replay alone: `python -m tests.loop.corrections`, about five minutes a seed.

The champion answers customers of a new product. Its first call with an order number that the customer did not give
gets the correction "What is your order number?". Corrected scenarios are halved: from the
corrections of one half the champion is trained by SFT or DPO, or not at all, and then by GRPO on replays of the same
scenarios. Measured is the other half: episodes without an invented number, and successes.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from grpo.config.dpo import PreferenceSettings
from grpo.config.pipeline import PipelineConfig
from grpo.environments.catalog import make_environment
from grpo.evaluation.statistics import compare
from grpo.learner.checkpoints import save_base
from grpo.learner.offline.demonstrations import TokenizedDemonstration
from grpo.learner.offline.preference_tuning import optimize
from grpo.learner.offline.preferences import WrittenPair, tokenize_pair
from grpo.learner.trl.sft_trainer import train_sft
from grpo.learner.update import update
from grpo.messages import Message
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.rewards.catalog import make_composite_reward
from grpo.rewards.score import score
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.tables import write_trajectories
from grpo.trajectories import Trajectory
from tests.benchmarks.desk import MODEL
from tests.loop.__main__ import NEW_WORDS, OLD_WORDS, champion_config, scenarios

ASK = "What is your order number?"
CUSTOMERS = 240
"""Customers of the champion with the new words, one episode each."""
CHAMPION_ITERATIONS, ITERATIONS = 4, 3
SAMPLES = 4
"""Episodes of each held-out scenario."""
TUNING = {"none": None, "sft": 1e-4, "dpo": 5e-5}
"""Learning rate of each way to learn from the corrections before GRPO."""
EPOCHS, PER_STEP, BETA = 4, 8, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Shares of the episodes of each held-out scenario."""

    grounded: NDArray[np.float64]  # [scenarios] without an invented order number
    success: NDArray[np.float64]  # [scenarios]


class Trial:
    """One seed: a champion, its corrections, and what is learned from them."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.config = PipelineConfig.model_validate({**champion_config(folder), "seed": seed})
        self.desk = make_environment(self.config.environment)

    def play(
        self, policy: TransformersPolicy, cases: Sequence[Scenario], *, samples: int, part: int | str
    ) -> list[Trajectory]:
        """Sample episodes at temperature 1."""
        renderer = Renderer(policy.tokenizer, tools=self.desk.tools)
        return collect(
            cases,
            policy,
            self.desk,
            renderer,
            self.config.rollout,
            group_size=samples,
            temperature=1.0,
            run_seed=self.seed,
            iteration=part,
        )

    def train(self, policy: TransformersPolicy, cases: Sequence[Scenario], *, iterations: int) -> TransformersPolicy:
        """Train by GRPO on these scenarios, as a run does, from a copy of the policy."""
        place = Path(tempfile.mkdtemp(dir=self.folder))
        base, parent = place / "base", place / "base"
        base.mkdir()
        save_base(policy, base)
        settings = self.config.training.model_copy(update={"iterations": iterations})
        rng = np.random.default_rng(self.seed)
        for iteration in range(iterations):
            chosen = [cases[k] for k in rng.permutation(len(cases))[: self.config.rollout.scenarios]]
            played = self.play(load(parent), chosen, samples=self.config.rollout.group_size, part=iteration)
            path, target = place / f"{iteration}.parquet", place / str(iteration)
            write_trajectories(path, list(score(played, make_composite_reward(self.config.reward))), provenance={})
            if update([path], parent, base, target, settings, seed=self.seed, iteration=iteration).changed:
                parent = target
        return load(parent)

    def measure(self, policy: TransformersPolicy, cases: Sequence[Scenario]) -> Result:
        """Play the held-out scenarios."""
        played = self.play(policy, cases, samples=SAMPLES, part="heldout")
        shares = [
            [[correct(trajectory) is None, bool(trajectory.outcome and trajectory.outcome.success)]]
            for trajectory in played
        ]
        means = np.array(shares, np.float64).reshape(len(cases), SAMPLES, 2).mean(axis=1)
        return Result(grounded=means[:, 0], success=means[:, 1])

    def tune(self, policy: TransformersPolicy, pairs: Sequence[WrittenPair], *, method: str) -> TransformersPolicy:
        """Train a policy in place on corrections; returns it under its new hash."""
        renderer, rate = Renderer(policy.tokenizer, tools=self.desk.tools), TUNING[method]
        if rate is None:
            return policy
        if method == "dpo":
            settings = PreferenceSettings(learning_rate=rate, epochs=EPOCHS, pairs_per_step=PER_STEP, beta=BETA)
            tokens = [tokenize_pair(pair, renderer, max_context=policy.max_context) for pair in pairs]
            _, before, after = optimize(policy, tokens, settings, max_tokens=6144, seed=self.seed)
            print(f"dpo: before {before}, after {after}", flush=True)
        else:
            conversations = [renderer.tokenize_conversation((*pair.prompt, pair.chosen)) for pair in pairs]
            losses = train_sft(
                policy.model,
                policy.tokenizer,
                [
                    TokenizedDemonstration(token_ids=np.array(ids, np.int32), loss_mask=np.array(mask))
                    for ids, mask in conversations
                ],
                learning_rate=rate,
                epochs=EPOCHS,
                conversations_per_step=PER_STEP,
                seed=self.seed,
            )
            print(f"sft: loss {losses[0]:.3f} to {losses[-1]:.3f} nats per token", flush=True)
        return TransformersPolicy(policy.model, policy.tokenizer)


def correct(trajectory: Trajectory) -> WrittenPair | None:
    """Correction of the first call with an order number that the customer did not give; None without such a call."""
    messages = [turn.message for turn in trajectory.turns]
    for index, message in enumerate(messages):
        given = " ".join(part.content for part in messages[:index] if part.role == "user")
        if any(str(call.arguments.get("order", "")) not in given for call in message.tool_calls):
            return WrittenPair(
                prompt=tuple(messages[:index]),
                chosen=Message(role="assistant", content=ASK),
                rejected=message,
                tools=None,
                place=trajectory.scenario_id,
            )
    return None


def run(folder: Path, *, seed: int) -> dict[str, Result]:
    """Results on the held-out scenarios, by method before and after GRPO."""
    trial = Trial(folder, seed=seed)
    old = list(itertools.islice(scenarios(OLD_WORDS, seed=seed, prefix="old"), 128))
    champion = trial.train(load(MODEL), old, iterations=CHAMPION_ITERATIONS)
    new = list(itertools.islice(scenarios(NEW_WORDS, seed=seed, prefix="new"), CUSTOMERS))
    served = zip(new, trial.play(champion, new, samples=1, part="served"), strict=True)
    corrected = [(case, pair) for case, played in served if (pair := correct(played)) is not None]
    trained, heldout = corrected[::2], [case for case, _ in corrected[1::2]]
    print(f"seed {seed}: {len(corrected)} of {CUSTOMERS} corrected, {len(trained)} trained on", flush=True)
    base = folder / "champion"
    base.mkdir()
    save_base(champion, base)
    results = {}
    for method in TUNING:
        tuned = trial.tune(load(base), [pair for _, pair in trained], method=method)
        after = trial.train(tuned, [case for case, _ in trained], iterations=ITERATIONS)
        results[f"{method}, before GRPO"] = trial.measure(tuned, heldout)
        results[f"{method}, after GRPO"] = trial.measure(after, heldout)
    return results


def table(results: Sequence[dict[str, Result]]) -> str:
    """Means over the held-out scenarios of all seeds, and paired differences from replay alone, 95 % intervals."""
    lines = []
    for name, metric in itertools.product(results[0], ("grounded", "success")):
        replay = f"none, {name.partition(', ')[2]}"
        ours, theirs = (np.concatenate([getattr(part[key], metric) for part in results]) for key in (name, replay))
        compared = compare(name, theirs, ours, ends=(0.0, 1.0), confidence=0.95, resamples=10_000, seed=0)
        difference = compared.difference
        lines.append(
            f"{name:18} {metric:9} {compared.candidate.mean:.3f} of {len(ours)}, over replay {difference.mean:+.3f} "
            f"[{difference.low:+.3f}, {difference.high:+.3f}]"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results, began = [], time.monotonic()
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory(prefix="grpo-corrections-") as folder:
            results.append(run(Path(folder), seed=seed))
        print(f"{time.monotonic() - began:.0f} s\n{table(results)}", flush=True)


if __name__ == "__main__":
    main()
