"""Bytes that an iteration sends to an object store, next to its training state.

    python -m tests.benchmarks.uploads                 the shipped model with the settings of the quickstart

Each iteration of a training has to store its weights and two moments of each weight, 12 bytes a weight in float32. The
store is in memory and counts what it is sent.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import PurePosixPath

from safetensors import safe_open

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo_flows.pipeline import base_policy, prepare_scenarios, training_steps
from grpo_local import settings
from grpo_tasks.execution.executor import InProcessExecutor
from grpo_tasks.execution.stage import executed_by
from tests.benchmarks.desk import quickstart
from tests.doubles import changed
from tests.object_store import CountingFileSystem, counting_store

ITERATIONS = 3
_PARTS = {"model.safetensors": "weights", "adapter_model.safetensors": "weights", "optimizer.safetensors": "moments"}
_LORA = {"r": 16}


def uploads(*, lora: bool) -> tuple[int, list[tuple[Counter[str], Counter[str]]]]:
    """Bytes of the training state, and for each iteration the bytes that were sent and copied, by part."""
    training = {"iterations": ITERATIONS, **({"lora": _LORA} if lora else {})}
    config = PipelineConfig.model_validate(
        changed(quickstart().model_dump(), store=counting_store(), training=training)
    )
    counts: list[tuple[Counter[str], Counter[str]]] = []
    with executed_by(InProcessExecutor()):
        data = prepare_scenarios(config.scenarios, store=config.store, environment=config.environment)
        base = base_policy(config.policy, config.store)
        CountingFileSystem.sent.clear()
        for step in training_steps(config, data.split, base):
            counts.append((_by_part(CountingFileSystem.sent), _by_part(CountingFileSystem.copied)))
            CountingFileSystem.sent.clear()
            CountingFileSystem.copied.clear()
            checkpoint = step.policy.checkpoint
        folder = ArtifactStore(config.store).path(checkpoint)
    with safe_open(folder / ("adapter_model.safetensors" if lora else "model.safetensors"), framework="np") as file:
        weights = sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118 - it is not a mapping
    return 12 * weights, counts


def _by_part(objects: dict[str, int]) -> Counter[str]:
    """Bytes by part: weights and moments, other files of the checkpoint, episodes, and results of stages."""
    parts: Counter[str] = Counter()
    for name, size in objects.items():
        path = PurePosixPath(name)
        kind = path.parts[2]
        parts[_PARTS.get(path.name, "other files") if kind == "checkpoint" else kind] += size
    return parts


def main() -> None:
    """Measure both kinds of training, and print the table of the last iteration."""
    settings.apply()
    sys.stdout.write(
        "| trained | training state | sent | ratio | of it | copied by the store |\n|---|---|---|---|---|---|\n"
    )
    for lora in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            tempfile.tempdir = folder
            state, counts = uploads(lora=lora)
            tempfile.tempdir = None
        sent, copied = counts[-1]
        parts = ", ".join(f"{part} {size:,}" for part, size in sent.most_common())
        name = f"LoRA, r {_LORA['r']}" if lora else "all weights"
        sys.stdout.write(
            f"| {name} | {state:,} | {sent.total():,} | {sent.total() / state:.3f} | {parts} | {copied.total():,} |\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
