"""One process of the measurement of sharded memory: load, step and save, with the peak of each.

python -m tests.benchmarks.sharded_rank FOLDER RANK SIZE [adapters]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import distributed

from grpo.algorithms.reductions import Denominators
from grpo.config.training import LoraSettings, TrainingSettings
from grpo.learner.batch import Sample
from grpo.learner.checkpoints import read_state, resume, save
from grpo.learner.distributed import ProcessGroup
from grpo.learner.learner import Learner
from grpo.learner.logprobs import local_logprobs
from grpo.policy.transformers.adapters import add_adapters
from grpo.policy.transformers.model import TransformersPolicy, load_sharded, weights_hash
from grpo.policy.transformers.sharding import shard_model

TOKENS, PROMPT = 64, 16
"""Tokens of each sequence of the step, and how many of them are its prompt."""


def main(folder: Path, rank: int, size: int, lora: LoraSettings | None) -> None:
    """Write the peaks of this process, in bytes above what it had before, and the seconds of each phase.

    With adapters it loads the base, adds them, and takes a step.
    """
    if lora is not None:
        import peft  # noqa: F401 - its memory is the package's
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=(folder / "meeting").as_uri(), rank=rank, world_size=size)
    group = ProcessGroup(rank=rank, size=size)
    before = psutil.Process().memory_info().rss
    peaks: dict[str, float] = {}
    seconds: dict[str, float] = {}

    def measured(phase: str, act: Callable[[], TransformersPolicy | None]) -> TransformersPolicy | None:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the high-water mark starts again
        began = time.perf_counter()
        result = act()
        seconds[phase] = time.perf_counter() - began
        peaks[phase] = _peak() - before
        distributed.barrier()
        return result

    parent = folder / "base"

    def load() -> TransformersPolicy:
        path_check = read_state(parent).path_check
        policy = load_sharded(parent, path_check=path_check, shard=lambda model: shard_model(model, local_logprobs))
        if lora is not None:
            add_adapters(policy.model, lora, seed=0)
        return policy

    policy = measured("load", load)
    assert policy is not None
    settings = TrainingSettings(processes=size, sharding="sharded", learning_rate=1e-5, lora=lora)
    learner = Learner(policy.model, settings, process_group=group)
    _step(learner, size)  # makes the moments, so that the next step holds them in its passes
    measured("step", lambda: _step(learner, size))
    if lora is not None:
        _write(folder, rank, peaks, seconds)
        return
    learner.optimizer.zero_grad(set_to_none=True)

    def store() -> None:
        policy.hash = weights_hash(policy.model)
        save(policy, learner, folder / "trained", parent="base", source=parent)

    (folder / "trained").mkdir(exist_ok=True)
    measured("save", store)
    distributed.barrier()
    learner.optimizer.state.clear()
    learner.optimizer.zero_grad(set_to_none=True)
    measured("resume", lambda: resume(learner, folder / "trained"))
    _write(folder, rank, peaks, seconds)


def _write(folder: Path, rank: int, peaks: dict[str, float], seconds: dict[str, float]) -> None:
    (folder / f"{rank}.json").write_text(json.dumps({"peaks": peaks, "seconds": seconds}))
    distributed.destroy_process_group()


def _step(learner: Learner, size: int) -> None:
    """One optimizer step on a random sequence for each process."""
    rng = np.random.default_rng(0)
    mask = np.arange(TOKENS) >= PROMPT
    samples = [
        Sample(
            token_ids=rng.integers(8, 200, TOKENS).astype(np.int32),
            loss_mask=mask,
            sampler_logprobs=np.zeros(TOKENS, dtype=np.float32),
            advantages=np.float32(1 - 2 * (index % 2)) * mask,
            temperature=1.0,
            place=f"row {index}",
        )
        for index in range(size)
    ]
    tokens = size * (TOKENS - PROMPT)
    learner.step(samples, Denominators(sequences=size, tokens=tokens, normalizer=TOKENS), on_policy=False)


def _peak() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), LoraSettings() if "adapters" in sys.argv else None)
