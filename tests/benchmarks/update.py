"""A whole train stage of triage with SmolLM2-135M-Instruct, next to the optimizer steps in it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.learner import update as module
from grpo.learner.checkpoints import load_policy, read_state, save_base
from grpo.policy.transformers.dtype import Dtype
from grpo.policy.transformers.model_cache import model_cache
from grpo.rewards.catalog import make_composite_reward
from grpo.rewards.score import score
from grpo.tables import write_trajectories
from tests.benchmarks.measure import use_all_cores
from tests.benchmarks.page import Findings, Table
from tests.benchmarks.triage import fine_tuned, play_triage, triage_config, triage_scenarios
from tests.places import ROOT

ITERATIONS = 4
"""Train stages, of which the first is not counted, because it has no optimizer state to read."""
PARTS = {
    "opening": ("_open", "read_all", "build_batch", "resume"),
    "optimizer steps": ("train_with_learner",),
    "hash, checkpoint and KL": ("_in_background",),
}
"""Functions of the update that take these parts of its time."""


def measure() -> Findings:
    """Iterations of triage in float32 and in bfloat16: seconds of the rollout, of the train stage, and of its parts."""
    config = triage_config()
    title = "A train stage and its optimizer steps"
    if not (ROOT / config.policy.model).exists():
        return Findings(title=title, text="Not measured: `make real` fetches the model.")
    use_all_cores()
    rows = [_row(config, dtype) for dtype in ("float32", "bfloat16")]
    return Findings(
        title=title,
        text=(
            "SmolLM2-135M-Instruct after fine-tuning, one iteration of triage as a run makes it: the rollout, then the "
            "train stage from Parquet to a stored checkpoint. The optimizer steps are forward and backward passes "
            "and AdamW. The rest opens the policy and the optimizer state, measures the KL to the base, writes the "
            f"checkpoint and hashes it. Medians of {ITERATIONS - 1} iterations that follow each other."
        ),
        tables=(
            Table(
                head=("dtype", "rollout s", "train stage s", *(f"{name} s" for name in PARTS), "stage ÷ steps"),
                rows=tuple(rows),
            ),
        ),
    )


def _row(config: PipelineConfig, dtype: Dtype) -> tuple[str, ...]:
    """Iterations in one dtype, each from the checkpoint before it."""
    seconds: list[dict[str, float]] = []
    settings = config.training
    if dtype != "float32":
        settings = settings.model_copy(update={"importance_sampling_cap": 2.0})
    with TemporaryDirectory() as folder, _timed_parts() as spent:
        artifacts = ArtifactStore(folder)
        policy = fine_tuned(config, Path(folder))
        with artifacts.new_folder("checkpoint") as new:
            save_base(policy, new.path, dtype=dtype)
        model_cache.put(policy)
        base = parent = new.artifact
        scenarios, reward = triage_scenarios(config), make_composite_reward(config.reward)
        for iteration in range(ITERATIONS):
            spent.clear()
            began = time.perf_counter()
            trajectories = play_triage(load_policy(artifacts, parent).in_dtype(dtype), config, scenarios)
            played = time.perf_counter()
            with artifacts.new_file("scored", ".parquet") as file:
                write_trajectories(file.path, score(trajectories, reward), provenance={})
            scored = time.perf_counter()
            with artifacts.new_folder("checkpoint", like=parent) as new:
                module.update(
                    [artifacts.path(file.artifact)],
                    artifacts.path(parent),
                    artifacts.path(base),
                    new.path,
                    settings,
                    seed=config.seed,
                    iteration=iteration,
                )
            parent = new.artifact
            assert read_state(artifacts.path(parent)).step_count > 0
            ended = time.perf_counter()
            seconds.append({"rollout": played - began, "stage": ended - scored, **spent})
    taken = {name: statistics.median(each[name] for each in seconds[1:]) for name in seconds[0]}
    ratio = taken["stage"] / taken["optimizer steps"]
    return dtype, *(f"{taken[name]:.1f}" for name in ("rollout", "stage", *PARTS)), f"{ratio:.2f}"


@contextmanager
def _timed_parts() -> Iterator[dict[str, float]]:
    """Seconds of the parts of updates in the block, by name."""
    spent: dict[str, float] = {}

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **settings: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **settings)
            finally:
                spent[part] = spent.get(part, 0.0) + time.perf_counter() - began

        return call

    functions = {name: timed(part, getattr(module, name)) for part, names in PARTS.items() for name in names}
    with patch.multiple(module, **functions):
        yield spent


if __name__ == "__main__":
    import sys

    from tests.benchmarks.page import Section, here, render

    sys.stdout.write(render([Section(findings=measure(), measured=here())]))
