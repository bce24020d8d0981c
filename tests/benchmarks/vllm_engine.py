"""vLLM's side of the rollout benchmark: an engine in the environment of `make vllm`, asked through a pipe.

python -m tests.benchmarks.vllm_engine bfloat16            measures one rollout of the desk for each line that it reads
python -m tests.benchmarks.vllm_engine bfloat16 FOLDER     one of triage, with the model in this folder
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from pydantic import BaseModel

from tests.benchmarks.triage import play_triage, triage_config, triage_scenarios
from tests.places import ROOT

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
ANSWER = "rollout "
MEMORY = 0.1
"""Share of the machine's memory for an engine."""


class Rollout(BaseModel):
    """One measured rollout."""

    rate: float
    """Generated tokens a second."""
    largest_error: float
    """Largest difference of the log-probabilities to those of a plain forward pass in float32."""


class VLLMEngine:
    """An engine in processes of its own: of the desk's model, or of the one in `folder`, which plays triage.

    They are stopped between measurements: its idle workers would poll, on a core of the other sides.
    """

    def __init__(self, dtype: str, folder: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [str(PYTHON), "-m", "tests.benchmarks.vllm_engine", dtype, *([str(folder)] if folder else [])],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"},  # all cores compute
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        self.measure()  # starts and warms the engine
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.close()
        self._process.stdin = None
        self._process.communicate(timeout=120)

    def measure(self) -> Rollout:
        """Measure one rollout."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        log = []
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                self._signal(signal.SIGSTOP)
                return Rollout.model_validate_json(line.removeprefix(ANSWER))
            log.append(line)
        raise RuntimeError(f"vLLM ended: {''.join(log)[-3000:]}")

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)


def main(dtype: str, folder: str | None = None) -> None:
    """Measure one rollout for each line on the standard input."""
    from grpo.policy.transformers.model import load
    from grpo.policy.vllm import VLLMPolicy
    from tests.benchmarks.desk import SCENARIOS, SIBLINGS, quickstart
    from tests.doubles import play_desk
    from tests.vllm.engine import largest_error
    from tests.vllm.models import widen_heads

    config = quickstart() if folder is None else triage_config()
    with tempfile.TemporaryDirectory() as wide:
        if folder is None:
            widen_heads(Path(wide))
        model = Path(folder or wide)
        policy = VLLMPolicy(
            model,
            max_context=config.rollout.max_context,
            gpu_memory_utilization=MEMORY,
            dtype=dtype,
            compiled=True,
        )
        plain, scenarios = load(model), triage_scenarios(config) if folder else []
        for _ in sys.stdin:
            began = time.perf_counter()
            if folder is None:
                played = play_desk(policy, config, scenarios=SCENARIOS, group_size=SIBLINGS)
            else:
                played = play_triage(policy, config, scenarios)
            rate = sum(trajectory.completion_tokens for trajectory in played) / (time.perf_counter() - began)
            answer = Rollout(rate=rate, largest_error=largest_error(played[:64], plain)[0])
            print(f"{ANSWER}{answer.model_dump_json()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
