"""Runs with a planted failure, and healthy ones, as a run stores them: episodes in Parquet, and a report.

A run has eight iterations of twelve scenarios with four samples each. Unless something else is planted, success rises
from 20 % to 80 %, a reply names its scenario, and each episode makes one tool call that is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.evaluation.schema import IterationMetrics, ReportDocument, RolloutRecord
from grpo.messages import Message, ToolCall
from grpo.rewards.rollout_summary import summarize
from grpo.tables import write_trajectories
from grpo.trajectories import Outcome, Trajectory, Turn
from tests.doubles import changed, make_trajectory, put_file, short_run
from tests.grpo.evaluation.test_html_report import document

ITERATIONS, SCENARIOS, SAMPLES, HELD_OUT = 8, 12, 4, 24
WEIGHTS = {"task": 0.7, "checks": 0.3}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of an episode in its run, from which a plant decides."""

    part: int | str
    """Index of the iteration, or `after`."""
    iterations: int
    scenario: int
    sample: int
    draw: float
    """A number in [0, 1), spread evenly over the episodes of an iteration."""
    rng: np.random.Generator

    @property
    def share(self) -> float:
        """Finished share of the training."""
        return self.part / (self.iterations - 1) if isinstance(self.part, int) else 1.0


def rising(place: Place) -> float:
    """Success rate of a run that learns."""
    return 0.2 + 0.6 * place.share


def flat(place: Place) -> float:
    """Success rate of a run that does not."""
    return 0.4


@dataclass(frozen=True, kw_only=True)
class Plant:
    """Differences of a run from a healthy one."""

    success: Callable[[Place], float | None] = rising
    """Success rate of an episode, or None if the environment verifies nothing."""
    change: Callable[[Place, bool], dict[str, Any]] = lambda place, success: {}
    """Fields of a trajectory, by its place and success. `breakdown` gives the reward, by `weights`."""
    metrics: Callable[[int], dict[str, Any]] = lambda index: {}
    settings: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=lambda: WEIGHTS)
    iterations: int = ITERATIONS
    train: int = 400
    document: dict[str, Any] = field(default_factory=dict)


def planted_run(plant: Plant, folder: Path, *, seed: int = 0) -> ReportDocument:
    """Write the episodes of a run into a store, and return its report."""
    rng, store = np.random.default_rng(seed), ArtifactStore(str(folder / "store"))
    parts: dict[int | str, list[Trajectory]] = {}
    for part in (*range(plant.iterations), "after"):
        count = HELD_OUT if part == "after" else SCENARIOS
        parts[part] = [
            _episode(plant, part, scenario, sample, rng)
            for scenario in range(count)
            for sample in range(1 if part == "after" else SAMPLES)
        ]
    rollouts = [
        RolloutRecord(
            part=part,  # type: ignore[arg-type]
            scored=(
                put_file(store, "scored", ".parquet", lambda path, t=t: write_trajectories(path, t, provenance={})),
            ),
        )
        for part, t in parts.items()
    ]
    config = PipelineConfig.model_validate(changed(short_run(folder, name="planted"), **_sections(plant)))
    iterations = [_iteration(plant, index, parts[index]) for index in range(plant.iterations)]
    return ReportDocument.model_validate(
        {
            **_report(),
            "name": "planted",
            "config": yaml.safe_dump(config.model_dump(mode="json")),
            "iterations": [iteration.model_dump() for iteration in iterations],
            "rollouts": [rollout.model_dump() for rollout in rollouts],
            "ingestion": {
                "records": 424,
                "scenarios": 424,
                "quarantined": 0,
                "train": plant.train,
                "heldout": HELD_OUT,
            },
            **plant.document,
        }
    )


@cache
def _report() -> dict[str, Any]:
    """The other parts of a report."""
    return document(iterations=[], conversations=[]).model_dump()


def _sections(plant: Plant) -> dict[str, Any]:
    defaults = {
        "rollout": {"scenarios": SCENARIOS, "group_size": SAMPLES, "shards": 1},
        "training": {"iterations": plant.iterations, "learning_rate": 3e-4},
    }
    return {
        section: {**defaults.get(section, {}), **plant.settings.get(section, {})}
        for section in {**defaults, **plant.settings}
    }


def _iteration(plant: Plant, index: int, episodes: Sequence[Trajectory]) -> IterationMetrics:
    summary = summarize(episodes)
    measured = {
        "index": index,
        "reward": summary.reward or 0.0,
        "success": summary.success,
        "components": summary.components,
        "truncated_share": summary.truncated_share,
        "turn_limit_share": summary.turn_limit_share,
        "failed_share": summary.failed_share,
        "informative_share": summary.informative_groups / summary.groups,
        "kl_to_base": 0.02 * index,
        "entropy": 1.0 * 0.9**index,
        "clip_share": 0.03,
        "ratio": 1.0,
        "gradient_norm": 0.4,
        "learning_rate": 3e-4,
        "loss": -1e-4,
        "tokens": 1000,
    }
    return IterationMetrics.model_validate({**measured, **plant.metrics(index)})


def _episode(plant: Plant, part: int | str, scenario: int, sample: int, rng: np.random.Generator) -> Trajectory:
    held_out = part == "after"
    number = scenario if held_out else (SCENARIOS * int(part) + scenario) % plant.train
    draw = (0.618 * (SAMPLES * scenario + sample) + 0.37 * (ITERATIONS if held_out else int(part))) % 1
    place = Place(part=part, iterations=plant.iterations, scenario=number, sample=sample, draw=draw, rng=rng)
    rate = plant.success(place)
    success = rate is not None and draw < rate
    fields: dict[str, Any] = {
        "scenario_id": f"{'held-out' if held_out else 'train'}-{number}",
        "category": "abc"[number % 3],
        "sample": sample,
        "policy_hash": f"policy-{part}",
        "prompt": [1, (3000 if held_out else 1000) + number, 2],
        "reply": [100 + number % 37, 200 + number % 41, *rng.integers(10, 20, size=4)],
        "stop": "terminated",
        "call": {"tool_calls": (ToolCall(name="look_up", arguments={"order": str(number)}),)},
        "result": '{"order": "open"}',
        "breakdown": {"task": float(success), "checks": 0.5 * success + 0.5 * draw},
        "outcome": None if rate is None else Outcome.of({"end_state": success}),
        "reward_metadata": {"weights": plant.weights},
        "is_masked": True,
        **plant.change(place, success),
    }
    return _trajectory(fields, plant.weights)


def _trajectory(fields: dict[str, Any], weights: dict[str, float]) -> Trajectory:
    prompt, reply, call, result = (fields.pop(name) for name in ("prompt", "reply", "call", "result"))
    half, end = len(prompt) + len(reply) // 2, len(prompt) + len(reply)
    mask = np.arange(end) >= len(prompt)
    fields.setdefault("terminal_reward", sum(weights[name] * value for name, value in fields["breakdown"].items()))
    messages = (
        (Message(role="user", content="Where is my order?"), 0, len(prompt)),
        (Message(role="assistant", content="", **call), len(prompt), half),
        (Message(role="tool", content=result), half, half),
        (Message(role="assistant", content="It is on its way."), half, end),
    )
    return make_trajectory(
        turns=tuple(Turn(message=message, start=start, stop=stop) for message, start, stop in messages),
        token_ids=np.array([*prompt, *reply], dtype=np.int32),
        loss_mask=mask & fields.pop("is_masked"),
        sampler_logprobs=np.zeros(end, dtype=np.float32),
        **fields,
    )


REFUSED = {"verdict": "refuse", "reason": "improvement in success is 0.01, must be > 0"}
