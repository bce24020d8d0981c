"""Rollout speed of a real model, in float32 and bfloat16, against vLLM."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo.policy.transformers.model import TransformersPolicy
from grpo.trajectories import Trajectory
from tests.benchmarks.measure import in_turn, seconds, use_all_cores
from tests.benchmarks.page import Findings, Table, Versus
from tests.benchmarks.rollout import DTYPES, REPEATS
from tests.benchmarks.triage import fine_tuned, play_triage, triage_config, triage_scenarios
from tests.benchmarks.vllm_engine import PYTHON, VLLMEngine
from tests.places import ROOT
from tests.vllm.engine import largest_error

TITLE = "Rollout of a real model"


def measure() -> Findings:
    """Rollouts of one triage iteration in turn, after one that warms each side up."""
    config = triage_config()
    if not (ROOT / config.policy.model).exists() or not PYTHON.exists():
        return Findings(title=TITLE, text="Not measured: `make real` fetches the model, `make vllm` the other engine.")
    use_all_cores()
    scenarios, played = triage_scenarios(config), list[Trajectory]()
    mismatch: dict[str, float] = {}
    with TemporaryDirectory() as folder, ExitStack() as stack:
        policy = fine_tuned(config, Path(folder))

        def our_rate(side: TransformersPolicy, name: str) -> float:
            taken = seconds(lambda: played.__setitem__(slice(None), play_triage(side, config, scenarios)))
            if name not in mismatch:
                mismatch[name] = largest_error(played[:64], policy)[0]
            return sum(trajectory.completion_tokens for trajectory in played) / taken

        def their_rate(engine: VLLMEngine, name: str) -> float:
            rollout = engine.measure()
            mismatch[name] = rollout.largest_error
            return rollout.rate

        rates = {}
        for dtype in DTYPES:
            engine = stack.enter_context(VLLMEngine(dtype, Path(folder) / "start"))
            own = f"ours, {dtype}"
            rates[own] = partial(our_rate, policy.in_dtype(dtype), own)
            rates[f"vLLM, {dtype}"] = partial(their_rate, engine, f"vLLM, {dtype}")
            rates[own]()
        speed = in_turn(rates, repeats=REPEATS)
    rows = tuple((name, f"{rate:,.0f}", f"{mismatch[name]:.1g}") for name, rate in speed.items())
    return Findings(
        title=TITLE,
        text=(
            f"SmolLM2-135M-Instruct after fine-tuning, {len(scenarios)} triage scenarios × {config.rollout.group_size} "
            "episodes, with the same environment, renderer and episode code. The last column is the largest difference "
            "of the sampler's log-probabilities to those of a plain float32 pass over the same tokens. Medians of "
            f"{REPEATS}, runs alternate."
        ),
        tables=(Table(head=("inference backend", "tokens generated/s", "log-probabilities differ by"), rows=rows),),
        gist=tuple(
            Versus(
                measure=f"rollout of a 135 M model, {dtype}",
                ours=f"{speed[f'ours, {dtype}']:,.0f} tokens/s",
                against=f"vLLM {speed[f'vLLM, {dtype}']:,.0f}",
                ratio=speed[f"ours, {dtype}"] / speed[f"vLLM, {dtype}"],
                bound=bound,
            )
            for dtype, bound in DTYPES.items()
        ),
    )
