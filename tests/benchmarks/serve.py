"""Serving: `grpo serve` against other servers and against the sampler without one, with the bars of its behaviour."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from grpo_local.managed_process import free_port
from tests.benchmarks.page import Findings, Table
from tests.benchmarks.serve_bare import bare
from tests.benchmarks.serve_overload import costs, mirror_cost, overload
from tests.benchmarks.serve_rows import Bar, table
from tests.benchmarks.serve_sides import EACH, ours, running, transformers_serve, unending, vllm_serve
from tests.benchmarks.serve_swaps import drain, swaps
from tests.benchmarks.serve_throughput import latency, start, throughput
from tests.benchmarks.vllm_engine import PYTHON as VLLM_PYTHON
from tests.places import DESK_MODEL, ROOT
from tests.vllm.models import widen_heads

SCALE = float(os.environ.get("BENCH_SCALE", "1"))
"""Factor of all durations; below 1 for a look at whether everything runs."""
CONTEXT = 1024
AT_ONCE = ("--set", "service.stream_interval_s=0")
NO_VLLM = f"vLLM: no {VLLM_PYTHON.relative_to(ROOT)}; `make vllm` makes it"
TEXT = (
    "Multi-turn conversations of the support desk from a load generator in a process of its own, on the same machine: "
    "system prompt, customers' lines, what tools say of an order; four turns of 32 tokens, temperature 1, streamed. "
    "All sides get the same model, in float32; its tokens that end a turn or call a tool have the embedding of an "
    "unlikely one, so that every reply has 32 tokens. Ours gets the id of the conversation and the new message, the "
    "others all messages. Sides run in turn, medians of 3; those that are not measured are stopped. A server may send "
    "several tokens in one event, ours unless its interval is 0, and inter-token latency (ITL) is the time between two "
    "events with text; its bar is that of the interval 0. The model of ours has all cores but one, as by default. "
    "The bars of latency, overload, swaps and drain are those of the desk clerk. Memory is what all processes of the "
    "server hold, without the cache of prefixes, which fills by design; the alias of the champion moves every "
    "10 s between three versions for a minute, of which two stay loaded; clients try nothing again."
)


def measure() -> Findings:
    """Measure everything; about ten minutes."""
    skipped: list[str] = []
    tables: list[Table] = []
    bars: list[Bar] = []

    def keep(result: tuple[Table, list[Bar]]) -> None:
        tables.append(result[0])
        bars.extend(result[1])

    with tempfile.TemporaryDirectory(prefix="grpo-serve-") as place:
        root = Path(place)
        clerk, wide = root / "clerk", root / "wide"
        shutil.copytree(DESK_MODEL, clerk)
        unending(clerk)
        if VLLM_PYTHON.exists():
            widen_heads(wide)
            unending(wide)
        else:
            skipped.append(NO_VLLM)
        with ExitStack() as stack:
            sides = start(stack, server_starts(clerk, wide if VLLM_PYTHON.exists() else None, root))
            keep(throughput("desk clerk", sides, 6 * SCALE, 2 * SCALE))
            keep(latency(clerk, sides, 6 * SCALE, 2 * SCALE))
        keep(_costs(clerk, root))
        with ours(str(clerk), root / "overload", options=("--set", "service.max_requests=128")) as side:
            keep(overload(side, 60 * SCALE, 5 * SCALE))
        bars += swaps(clerk, root / "registry", 60 * SCALE)
        bars += drain(clerk, root / "drain", 12 * SCALE, 2 * SCALE)
    left_out = "".join(f" Left out: {reason}." for reason in skipped)
    return Findings(title="Serving", text=f"{TEXT}{left_out}", tables=(table(bars), *tables))


def server_starts(
    folder: Path, vllm: Path | None, root: Path, options: Sequence[str] = ()
) -> list[Callable[[], object]]:
    """Servers of a model, ours with these options, and the sampler without one."""
    name = folder.name
    starts: list[Callable[[], object]] = [
        partial(ours, str(folder), root / f"{name}-home", options=options),
        partial(
            ours,
            str(folder),
            root / f"{name}-each",
            name=EACH,
            options=(*options, *AT_ONCE),
        ),
        partial(transformers_serve, folder, root / f"{name}-default.txt", batching=False),
        partial(transformers_serve, folder, root / f"{name}-batching.txt", batching=True),
        partial(bare, folder),
    ]
    if vllm is not None:
        starts.append(partial(vllm_serve, vllm, root / f"{name}-vllm.txt", max_context=CONTEXT))
    return starts


def _costs(folder: Path, root: Path) -> tuple[Table, list[Bar]]:
    with ExitStack() as stack:
        names = {"": "grpo serve", "log": "without its log", "metrics": "without its metrics"}
        starts = [
            partial(ours, str(folder), root / f"costs-{left or 'none'}", name=name, without=left)
            for left, name in names.items()
        ]
        sides = start(stack, starts)
        result, bars = costs(sides, 4 * SCALE, 1 * SCALE)
        with _tracking_server(root) as address:
            mirrored = partial(
                ours,
                str(folder),
                root / "costs-mirror",
                name="mirrored",
                options=("--set", "mirror.experiment=served"),
                environment={"MLFLOW_TRACKING_URI": address},
            )
            (mirror,) = start(stack, [mirrored])
        return result, [*bars, mirror_cost(sides[0], mirror, 4 * SCALE, 1 * SCALE)]


@contextmanager
def _tracking_server(root: Path) -> Iterator[str]:
    """MLflow's server, by its address."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "mlflow"), "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{root}/mlflow.db", "--default-artifact-root", str(root / "mlflow")]
    with running(command, port, root / "mlflow.txt", {}):
        yield f"http://127.0.0.1:{port}"
