"""Tables of docs/scale.md: does a model fit on N accelerators of 80 GB, by the estimates of the dry run.

`python -m tests.scale` writes them. Nothing is measured here, and no weights are read, because the sizes follow from
config.json. The estimate is held against the peaks that `make bench` has measured with a model of 0.5 B weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo.config.training import LoraSettings, TrainingSettings
from grpo.learner.estimates.empty_model import empty_model
from grpo.learner.estimates.memory import memory_estimate
from grpo.learner.estimates.model_sizes import ModelSizes, model_sizes
from grpo.learner.estimates.process_memory import FROZEN, GATHERED, ProcessMemory, process_memory
from grpo.policy.transformers.dtype import Dtype
from grpo.storage.files import write_atomically
from tests.benchmarks.page import Table, read
from tests.benchmarks.sharded import SIZES
from tests.benchmarks.sharded_rank import TOKENS
from tests.places import ROOT

PAGE = ROOT / "docs" / "scale.md"
SECTION = "## Does it fit?"
DEVICE = 80 * 10**9
"""Bytes of one accelerator."""
MODELS = {
    "Qwen2.5-7B": ("qwen2", 3584, 28, 28, 4, 18944, 152064),
    "Qwen2.5-32B": ("qwen2", 5120, 64, 40, 8, 27648, 152064),
    "Llama-3-70B": ("llama", 8192, 80, 64, 8, 28672, 128256),
}
"""Type, hidden size, layers, heads, key-value heads, intermediate size and vocabulary of the published configs."""
PER_NODE = 8
NODES = (1, 2, 4, 8)
MICROBATCH = 4096
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
_CLASSES = {"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}


def main() -> None:
    """Write the section of the page."""
    rows = [row for name in MODELS for row in _rows(name)]
    head = (
        "model", "trained", "policy.dtype", "GPUs", "state GB", "buffers GB", "activations GB", "load GB", "peak GB",
        "fits 80 GB",
    )  # fmt: skip
    keep(f"{TEXT}\n\n{Table(head=head, rows=tuple(rows)).markdown()}\n\n{against_the_bench()}", PAGE, SECTION)


TEXT = f"""\
Written by `python -m tests.scale` from the estimates of `grpo train CONFIG --dry-run`. Nobody has run these models
here: the table is arithmetic. `training.sharding` is sharded, with one process for each GPU and {PER_NODE} GPUs in a
node, gradient checkpointing, and passes of {MICROBATCH:,} tokens (`training.microbatch_tokens`). If all weights are
trained, a process holds (4 + 4 + 4 + 8) bytes per weight / GPUs: the policy, its reference, gradients and two moments,
all in float32, whatever `policy.dtype` is. If only adapters are trained, it holds 4 or 2 bytes per weight of the base /
GPUs, and in addition all adapters with their gradients and moments, which are not sharded. It reads its share of the
base in float32. Buffers are the gathered layers and their gradients, and activations are of one pass, counted in
float32. For each model, training and dtype, the last row has the smallest number of GPUs that is enough. The memory
that CUDA and NCCL take is not counted, so a peak near 80 GB may not fit."""


def _rows(name: str) -> Iterator[tuple[str, ...]]:
    for trained, lora in (("all weights", None), ("LoRA, r 16", LoraSettings())):
        with TemporaryDirectory() as folder:
            sizes = _sizes(_config(name), Path(folder), lora)
        for dtype in DTYPES:
            for nodes in NODES:
                memory = _memory(sizes, lora, dtype, nodes)
                parts = (memory.state, memory.buffers, memory.activations or 0, memory.load, memory.peak)
                fits = memory.peak <= DEVICE
                gigabytes = (f"{size / 1e9:.1f}" for size in parts)
                yield (name, trained, dtype, f"{nodes * PER_NODE}", *gigabytes, "yes" if fits else "no")
                if fits:
                    break


def _config(name: str) -> dict[str, object]:
    kind, hidden, layers, heads, kv_heads, intermediate, vocabulary = MODELS[name]
    return {
        "model_type": kind,
        "architectures": [_CLASSES[kind]],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    }


def _sizes(config: dict[str, object], folder: Path, lora: LoraSettings | None) -> ModelSizes:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    training = TrainingSettings(lora=lora)
    return model_sizes(folder, training, lambda: empty_model(folder, training))


def _memory(sizes: ModelSizes, lora: LoraSettings | None, dtype: Dtype, nodes: int) -> ProcessMemory:
    training = TrainingSettings(
        lora=lora,
        nodes=nodes,
        processes=PER_NODE,
        sharding="sharded",
        gradient_checkpointing=True,
        microbatch_tokens=MICROBATCH,
    )
    estimate = memory_estimate(sizes, training, episodes=0, max_context=MICROBATCH, dtype=dtype)
    return process_memory(estimate, sizes, training, dtype=dtype)


def against_the_bench() -> str:
    """The estimate of the bench's model, without a reference, beside the measured peak of a step."""
    tables = dict(zip(("all weights", "LoRA, r 16"), read()["sharded"].findings.tables, strict=True))
    training = TrainingSettings(microbatch_tokens=TOKENS)
    with TemporaryDirectory() as folder:
        sizes = _sizes({"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES}, Path(folder), None)
    activations = memory_estimate(sizes, training, episodes=0, max_context=TOKENS).activations or 0
    lines = []
    for (trained, table), copies in zip(tables.items(), (GATHERED, FROZEN), strict=True):
        for row in table.rows:
            step = dict(zip(table.head, row, strict=True))
            if step["phase"] == "step":
                share, layer, peak = (
                    int(step[name].replace(",", "")) for name in ("share MiB", "largest layer MiB", "peak MiB")
                )
                estimated = share + copies * layer + round(activations / 2**20)
                lines.append((trained, step["processes"], f"{share:,}", f"{estimated:,}", f"{peak:,}"))
    head = ("trained", "processes", "state MiB", "estimated peak MiB", "measured peak MiB")
    return (
        "The next table has the same estimate for the random model of 0.5 B weights that was measured on two cores\n"
        "([benchmarks.md](internals/benchmarks.md), memory of sharded weights). No reference model is loaded.\n\n"
        f"{Table(head=head, rows=tuple(lines)).markdown()}"
    )


def keep(section: str, page: Path, title: str) -> None:
    """Put the section in the place of the one that the page has under this title, and leave the others."""
    before, _, behind = page.read_text(encoding="utf-8").partition(f"{title}\n")
    _, separator, others = behind.partition("\n## ")
    write_atomically(page, f"{before.rstrip()}\n\n{title}\n\n{section}\n{separator}{others}")


if __name__ == "__main__":
    main()
