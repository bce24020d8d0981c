"""Peak memory of each process of an update with sharded weights, for a random model of 0.5 B weights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo.config.training import LoraSettings
from grpo.learner.checkpoints import CheckpointState, save_base
from grpo.learner.worker_group import RELEASE
from grpo.policy.transformers.adapters import add_adapters
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
"""Bytes that a phase holds for each trained weight: the weight, two moments, and in a step its gradient."""
LORA = LoraSettings()
HEAD = ("processes", "phase", "share MiB", "largest layer MiB", "peak MiB", "peak / (share + layer)", "s")
MOST = 1.3
"""Bound of a peak, in shares and the largest layer."""


@dataclass(frozen=True)
class Model:
    """Numbers of weights: of the model, of the largest unit that FSDP gathers, and of the adapters."""

    weights: int
    largest: int
    adapters: int

    def share(self, phase: str, processes: int, *, lora: bool) -> float:
        """Bytes that a process must hold in a phase, see `BYTES`. Adapters are whole, and the base has no moments."""
        if lora:
            return BYTES["load"] * self.weights / processes + BYTES[phase] * self.adapters
        return BYTES[phase] * self.weights / processes


def measure() -> Findings:
    """Peaks of load, step, save and resume with 2 and 4 processes, against their share and the largest layer."""
    rows: dict[bool, list[tuple[str, ...]]] = {False: [], True: []}
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = apart(make_base, folder / "base")
        for lora, processes in product(rows, PROCESSES):
            peaks, seconds = run(folder, processes, lora=lora)
            for phase, peak in peaks.items():
                share = model.share(phase, processes, lora=lora)
                ratio = peak / (share + 4 * model.largest)
                shown = f"{ratio:.2f}" if ratio <= MOST else f"**{ratio:.2f}**"
                rows[lora].append(
                    (f"{processes}", phase, _mib(share), _mib(4 * model.largest), _mib(peak), shown,
                     f"{seconds[phase]:.0f}")
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
            f"has mapped. The bound is {MOST:g} × (share + largest layer), and what exceeds it is bold. The second "
            f"table is of adapters of rank {LORA.r} on all linear layers, {model.adapters / 1e6:.1f} M weights. A "
            "process holds its share of the base in float32, and all adapters."
        ),
        tables=tuple(Table(head=HEAD, rows=tuple(rows[lora])) for lora in rows),
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
    weights = sum(parameter.numel() for parameter in model.parameters())
    add_adapters(model, LORA, seed=0)
    return Model(
        weights=weights,
        largest=model.get_input_embeddings().weight.numel(),
        adapters=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
    )


def run(folder: Path, processes: int, *, lora: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Largest peak of a process in bytes, and the seconds, of each phase. Adapters are loaded and take a step."""
    for name in ("meeting", "trained"):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.benchmarks.sharded_rank", str(folder)]
    trained = ["adapters"] if lora else []
    started = [
        subprocess.Popen([*command, str(rank), str(processes), *trained], cwd=ROOT, env={**os.environ, **RELEASE})
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
