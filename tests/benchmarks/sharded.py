"""Peak memory of each process of an update with sharded weights, for a random model of 0.5 B weights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo.learner.checkpoints import CheckpointState, save_base
from grpo.learner.distributed import RELEASE
from grpo.policy.transformers.exactness import PathCheck
from grpo.policy.transformers.model import TransformersPolicy
from grpo.pretrain.init_model import train_tokenizer
from tests.benchmarks.measure import apart
from tests.benchmarks.page import Findings, Table
from tests.places import ROOT

SIZES = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 5504,
    "vocab_size": 32000,
    "tie_word_embeddings": True,
}
"""Sizes of a Llama of 0.5 B weights, of which the embedding has a fifteenth."""
PROCESSES = (2, 4)
BYTES = {"load": 4, "step": 16, "save": 12, "resume": 12}
"""Bytes that a phase holds for each weight: the weight, two moments, and in a step its gradient."""
MOST = 1.3
"""Bound of a peak, in shares and the largest layer."""


@dataclass(frozen=True)
class Model:
    """Number of weights, and of those of the largest unit that FSDP gathers."""

    weights: int
    largest: int


def measure() -> Findings:
    """Peaks of load, step, save and resume with 2 and 4 processes, against their share and the largest layer."""
    rows: list[tuple[str, ...]] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = apart(make_base, folder / "base")
        for processes in PROCESSES:
            peaks, seconds = run(folder, processes)
            for phase, peak in peaks.items():
                unit = BYTES[phase] * model.weights / processes + 4 * model.largest
                ratio = peak / unit
                shown = f"{ratio:.2f}" if ratio <= MOST else f"**{ratio:.2f}**"
                rows.append(
                    (f"{processes}", phase, _mib(BYTES[phase] * model.weights / processes), _mib(4 * model.largest),
                     _mib(peak), shown, f"{seconds[phase]:.0f}")
                )  # fmt: skip
    return Findings(
        title="Memory of sharded weights",
        text=(
            f"A random model of {model.weights / 1e6:,.0f} M weights in float32, with {SIZES['num_hidden_layers']} "
            f"layers of {SIZES['hidden_size']} and a vocabulary of {SIZES['vocab_size']:,}. The processes share two "
            "cores and communicate over gloo. The share of a process is the part that it must hold: 4 bytes a weight "
            "when it loads, 12 with moments, and 16 with gradients. The step is the second one, which has moments in "
            "its passes. The largest layer is the embedding, which is tied to the head. A peak is the resident memory "
            "of the process that needs most, above what Python and its packages take, with the pages of files that it "
            f"has mapped. The bound is {MOST:g} × (share + largest layer), and what exceeds it is bold."
        ),
        tables=(
            Table(
                head=(
                    "processes",
                    "phase",
                    "share MiB",
                    "largest layer MiB",
                    "peak MiB",
                    "peak / (share + layer)",
                    "s",
                ),
                rows=tuple(rows),
            ),
        ),
    )


def make_base(folder: Path) -> Model:
    """Write a checkpoint of random weights."""
    tokenizer = train_tokenizer(["hello there how are you"] * 20, vocabulary=320)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, eos_token_id=tokenizer.eos_token_id))
    flat = PathCheck(path="flat", attention="grpo_flat", logprob_error=0.0, gradient_error=0.0)
    policy = TransformersPolicy(model, tokenizer, path_check=flat)
    folder.mkdir()
    save_base(policy, folder)
    assert CheckpointState.model_validate_json((folder / "learner.json").read_bytes()).path_check == flat
    return Model(
        weights=sum(parameter.numel() for parameter in model.parameters()),
        largest=model.get_input_embeddings().weight.numel(),
    )


def run(folder: Path, processes: int) -> tuple[dict[str, float], dict[str, float]]:
    """Largest peak of a process in bytes, and the seconds, of each phase."""
    for name in ("meeting", "trained"):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.benchmarks.sharded_rank", str(folder)]
    started = [
        subprocess.Popen([*command, str(rank), str(processes)], cwd=ROOT, env={**os.environ, **RELEASE})
        for rank in range(processes)
    ]
    if any([process.wait() for process in started]):
        raise SystemExit("a process of the measurement failed")
    measured = [json.loads((folder / f"{rank}.json").read_bytes()) for rank in range(processes)]
    peaks, seconds = (
        {phase: max(process[kind][phase] for process in measured) for phase in measured[0][kind]}
        for kind in ("peaks", "seconds")
    )
    return peaks, seconds


def _mib(size: float) -> str:
    return f"{size / 2**20:,.0f}"
