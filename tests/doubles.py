"""Configs, artifacts and episodes that several tests build."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.environments.catalog import make_environment
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory
from tests.places import DESK_MODEL, DESK_SCENARIOS

if TYPE_CHECKING:
    from grpo.policy.transformers.model import TransformersPolicy


def put_file(store: ArtifactStore, kind: str, suffix: str, write: Callable[[Path], object]) -> Artifact:
    """Store the file that `write` makes."""
    with store.new_file(kind, suffix) as new:
        write(new.path)
    return new.artifact


def put_folder(store: ArtifactStore, kind: str, write: Callable[[Path], object]) -> Artifact:
    """Store the folder that `write` fills."""
    with store.new_folder(kind) as new:
        write(new.path)
    return new.artifact


def short_run(folder: Path, *, name: str = "short", **sections: object) -> dict[str, Any]:
    """Config of a run of seconds on the embedded desk, artifacts in `folder`: two iterations, a few scenarios.

    short_run(folder, seed=5, rollout={"shards": 2}) has another seed and two shards; the rest stays. With two shards a
    run takes a quarter longer, because each shard generates for half of the conversations at a time.
    """
    config = {
        "name": name,
        "seed": 3,
        "store": str(folder / "store"),
        "scenarios": {
            "sources": [{"kind": "jsonl", "path": str(DESK_SCENARIOS)}],
            "validation_fraction": 0.25,
            "limit": 24,
        },
        "policy": {"model": str(DESK_MODEL)},
        "environment": {"kind": "support_desk"},
        "reward": [{"kind": "task_completion", "weight": 0.7}, {"kind": "checks", "weight": 0.3}],
        "rollout": {"scenarios": 6, "group_size": 4, "max_new_tokens": 40, "shards": 1},
        "training": {"iterations": 2, "learning_rate": 3e-4},
        "evaluation": {"resamples": 200, "samples": 1},
        "registry": {"model_name": f"{name}-{folder.name}"},
    }
    return changed(config, **sections)


def changed(config: Mapping[str, Any], **sections: object) -> dict[str, Any]:
    """The config with these sections: the keys of a mapping are laid over those that are there, the rest is replaced.

    changed({"a": {"b": 1, "c": 2}, "d": [3]}, a={"b": 4}, d=[]) == {"a": {"b": 4, "c": 2}, "d": []}
    """
    merged = {name: {**config.get(name, {}), **new} if isinstance(new, dict) else new for name, new in sections.items()}
    return {**config, **merged}


def desk_scenarios(count: int) -> list[Scenario]:
    """The first scenarios of the pack that ships."""
    with DESK_SCENARIOS.open(encoding="utf-8") as lines:
        return [Scenario.model_validate_json(line) for line in islice(lines, count)]


def with_a_conversation(folder: Path) -> dict[str, Any]:
    """Section of scenarios: some of the desk's, and one held-out conversation of a retraining without an outcome."""
    path = folder / "mixture.jsonl"
    conversation = {
        "id": "conversation-1",
        "user_responses": ["What is this all about?"],
        "world": {"orders": {}},
        "metadata": {"category": "zzz", "origin": {"keys": ["a"]}},
        "split": "heldout",
    }
    base = [scenario.model_dump_json() for scenario in desk_scenarios(60)]
    path.write_text("".join(f"{line}\n" for line in [*base, json.dumps(conversation)]))
    return {"sources": [{"kind": "jsonl", "path": str(path)}], "limit": None}


def play_desk(
    policy: TransformersPolicy,
    config: PipelineConfig,
    *,
    scenarios: int,
    group_size: int,
    iteration: int = 0,
    trees: int | None = None,
) -> list[Trajectory]:
    """Episodes of the support desk as a run of this config plays them, unscored."""
    desk = make_environment(config.environment)
    return collect(
        desk_scenarios(scenarios),
        policy,
        desk,
        Renderer(policy.tokenizer, tools=desk.tools),
        config.rollout,
        group_size=group_size,
        temperature=config.rollout.temperature,
        run_seed=config.seed,
        iteration=iteration,
        trees=trees,
    )


def make_trajectory(**changes: object) -> Trajectory:
    """A trajectory of one token that the policy said, of scenario s and policy p, with these fields changed."""
    fields: dict[str, object] = {
        "scenario_id": "s",
        "scenario_hash": "h",
        "category": "c",
        "difficulty": "easy",
        "sample": 0,
        "seed": 0,
        "policy_hash": "p",
        "renderer_hash": "r",
        "temperature": 1.0,
        "turns": (),
        "token_ids": np.zeros(1, dtype=np.int32),
        "loss_mask": np.ones(1, dtype=np.bool_),
        "sampler_logprobs": np.zeros(1, dtype=np.float32),
        "stop": "terminated",
        **changes,
    }
    return Trajectory(**fields)  # type: ignore[arg-type]
