"""`make bench`: measures, prints its tables, and writes them to docs/benchmarks.md with the machine and the commit."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows import settings

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "docs" / "benchmarks.md"
LINE = (
    '{{"id": "s{k}", "topic": "orders", "domain": "customer_service", "user_responses": '
    '["My order {k} has not arrived, can you look?", "It was placed two weeks ago."], '
    '"metadata": {{"difficulty": "easy", "category": "missing"}}}}\n'
)


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    """Peak memory of its first process."""
    peak_tree_mib: float
    """Peak memory of all its processes together, shared pages counted once, looked at five times a second."""


def _measure(command: list[str], environment: dict[str, str] | None = None) -> Cost:
    """Run a command to its end."""
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        ended = threading.Event()
        peaks = [0.0]

        def watch() -> None:
            while not ended.wait(0.2):
                peaks.append(_tree_bytes(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        ended.set()
        watcher.join()
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Cost(
        wall_s=time.perf_counter() - began,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024,
        peak_tree_mib=max(peaks) / 2**20,
    )


def _tree_bytes(pid: int) -> float:
    """Proportional set size of a process and its descendants now."""
    total = 0.0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total


def ingest_speed() -> list[tuple[str, str]]:
    """A million lines through a process of its own: scenarios a second of CPU time, and peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "million.jsonl"
        with source.open("w", encoding="utf-8") as file:
            file.writelines(LINE.format(k=k) for k in range(1_000_000))
        code = (
            "import sys;from pathlib import Path;from grpo.config.scenarios import FileSource;"
            "from grpo.scenarios.ingest import ingest;folder=Path(sys.argv[1]);"
            "ingest((FileSource(kind='jsonl',path=str(folder/'million.jsonl')),),folder/'s.parquet',folder/'q.parquet',"
            "max_quarantined_share=0.0)"
        )
        cost = _measure([sys.executable, "-c", code, folder])
    speeds = f"{1e6 / cost.wall_s:,.0f} scenarios/s ({1e6 / cost.cpu_s:,.0f} per CPU second)"
    return [("ingest, 1 000 000 JSONL lines", speeds), ("ingest, peak memory", f"{cost.peak_mib:,.0f} MiB")]


def _median(run: Callable[[], float], repeats: int = 3) -> float:
    return statistics.median(run() for _ in range(repeats))


def rollout_speed() -> list[tuple[str, str]]:
    """32 × 8 desk episodes with the embedded model, and one update on them."""
    from grpo.algorithms.reductions import Denominators
    from grpo.config.pipeline import load_config
    from grpo.config.training import TrainingSettings
    from grpo.environments.support_desk import SupportDesk
    from grpo.learner.learner import Learner
    from grpo.learner.samples import build_batch
    from grpo.policy.transformers.model import load
    from grpo.renderer import Renderer
    from grpo.rewards.composite import make_reward
    from grpo.rewards.score import score
    from grpo.rollout.collect import collect
    from grpo.scenarios.readers.catalog import read_records
    from grpo.scenarios.scenario import Scenario
    from grpo.trajectories import Trajectory, group

    config = load_config(ROOT / "data" / "configs" / "quickstart.yaml")
    records = (record.data for record in read_records(config.scenarios.sources[0]))
    scenarios = [Scenario.model_validate(data) for _, data in zip(range(32), records, strict=False)]
    policy = load(ROOT / config.policy.model)
    desk = SupportDesk()
    played: list[Trajectory] = []

    def roll() -> float:
        began = time.perf_counter()
        played[:] = collect(
            scenarios,
            policy,
            desk,
            Renderer(policy.tokenizer, tools=desk.tools),
            config.rollout,
            siblings=8,
            temperature=1.0,
            run_seed=0,
            iteration=0,
        )
        return time.perf_counter() - began

    seconds = _median(roll)
    said = sum(trajectory.action_count for trajectory in played)
    read = sum(len(trajectory.token_ids) for trajectory in played)
    scored = list(score(played, make_reward(config.reward)))
    batch = build_batch(group(scored), config.training, policy_hash=policy.hash)
    samples = [sample for members in batch.groups for sample in members]
    of = Denominators(sequences=batch.sample_count, tokens=batch.token_count, normalizer=256)

    def learn() -> float:
        learner = Learner(policy.model, TrainingSettings(learning_rate=0.0))
        began = time.perf_counter()
        learner.step(samples, of, on_policy=True)
        return time.perf_counter() - began

    step = _median(learn)
    tokens = sum(len(sample.token_ids) for sample in samples)
    return [
        (
            "rollout, 256 desk episodes",
            f"{seconds:.2f} s: {said / seconds:,.0f} tokens said/s, {read / seconds:,.0f} in all",
        ),
        ("one optimizer step on them", f"{step:.2f} s: {tokens / step:,.0f} tokens/s"),
    ]


def pipeline() -> tuple[list[tuple[str, str]], str]:
    """The default run from empty databases, the same again, and where the time went."""
    from grpo.evaluation.report import read_report

    rows: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **settings.quiet(), **settings.local(Path(folder))}
        environment.pop("PREFECT_API_URL", None)
        config = "data/configs/quickstart.yaml"
        command = [sys.executable, "-m", "flows.cli", "train", config, "--set", f"store={folder}/artifacts"]
        _measure([sys.executable, "-m", "flows.cli", "init"], environment)
        for label in ("default run, nothing cached", "the same again"):
            cost = _measure(command, environment)
            rows.append(
                (label, f"{cost.wall_s:.1f} s, peak memory {cost.peak_tree_mib:,.0f} MiB with Prefect's server")
            )
            document = read_report(Path(folder) / "quickstart" / "report.json")
            if len(rows) == 1:
                first = document
    assert first.evaluation is not None
    overall = first.evaluation.overall
    for name, side in (("before", overall.champion), ("after", overall.candidate)):
        rows.append((f"held-out success {name}", f"{side.mean:.1%} [{side.low:.1%}, {side.high:.1%}]"))
    rows.append(("orchestration share of the default run", f"{first.orchestration_share:.1%}"))
    stages = table(
        ("stage", "runs", "compute s", "wall s"),
        [(s.name, str(s.runs), f"{s.compute_s:.2f}", f"{s.wall_s:.2f}") for s in first.stages],
    )
    return rows, stages


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    return "\n".join(["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)])


def main() -> None:
    """Measure everything and write the page."""
    settings.apply()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    ingest = ingest_speed()  # first: a child's peak memory counts what its parent held when it was forked
    rows, stages = pipeline()
    measures = [*rows, *rollout_speed(), *ingest]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, commit {commit}"
    page = (
        f"# Benchmarks\n\nWritten by `make bench` on {machine}. Rollout and step are medians of 3.\n\n"
        f"{table(('measure', 'value'), measures)}\n\n## Stages of the default run\n\n{stages}\n"
    )
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(page, encoding="utf-8")
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
