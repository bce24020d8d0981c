"""Rollout speed: our sampler, left-padded `generate`, transformers' continuous batching, and vLLM."""

from __future__ import annotations

from contextlib import ExitStack

from transformers.generation import ContinuousBatchingConfig

from grpo.policy.policy import Policy, Sampling
from grpo.trajectories import Trajectory
from tests.benchmarks.against_trl import plain_model
from tests.benchmarks.desk import MODEL, SCENARIOS, SIBLINGS, desk_policy, quickstart
from tests.benchmarks.measure import in_turn, seconds
from tests.benchmarks.page import Findings, Table, Versus
from tests.benchmarks.usual import ContinuousPolicy, GeneratePolicy
from tests.benchmarks.vllm_engine import PYTHON, VLLMEngine
from tests.doubles import play_desk

ROWS = (32, 64)
"""Conversations in one call of `generate`; the fastest is taken."""
REQUESTS = ((8, 128), (16, 128))
"""Requests and tokens in a pass of continuous batching. On the CPU it masks all requests against all, so that few at
once are faster than many: 256 at once were half as fast."""
PAGE, PAGES = 16, 4096
"""Tokens of a page, small enough for short prompts to be shared, and pages for every conversation."""
REPEATS = 3
DTYPES = {"float32": 3.0, "bfloat16": 1.5}
"""Of vLLM's engines, each with the ratio to it that ours must reach."""


def measure() -> Findings:
    """Each way is tried once in each setting, which warms it up; then the fastest of each, in turn."""
    config, policy = quickstart(), desk_policy()
    model, tokenizer = plain_model(MODEL)
    sampling = Sampling(temperature=config.rollout.temperature, max_new_tokens=config.rollout.max_new_tokens, seed=0)
    generate = {f"{rows} at once": GeneratePolicy(model.eval(), tokenizer, rows) for rows in ROWS}
    continuous = {
        f"{requests} at once, {tokens} tokens a pass, pages of {PAGE}": ContinuousPolicy(
            plain_model(MODEL)[0].eval(),
            tokenizer,
            ContinuousBatchingConfig(
                page_size=PAGE,
                num_blocks=PAGES,
                max_batch_tokens=tokens,
                max_requests_per_batch=requests,
                return_logprobs=True,
            ),
            sampling,
        )
        for requests, tokens in REQUESTS
    }
    played: list[Trajectory] = []

    def rate(make_inference_backend: Policy) -> float:
        """Tokens said a second."""

        def play() -> None:
            played[:] = play_desk(make_inference_backend, config, scenarios=SCENARIOS, group_size=SIBLINGS)

        taken = seconds(play)
        return sum(trajectory.completion_tokens for trajectory in played) / taken

    def best(settings: dict[str, GeneratePolicy] | dict[str, ContinuousPolicy]) -> str:
        rates = {name: rate(make_inference_backend) for name, make_inference_backend in settings.items()}
        return max(rates, key=lambda name: rates[name])

    rate(policy)
    rows, requests = best(generate), best(continuous)
    sides = {"ours": policy, "generate": generate[rows], "continuous": continuous[requests]}
    dtypes = DTYPES if PYTHON.exists() else {}
    mismatch: dict[str, float] = {}
    with ExitStack() as engines:
        vllm = {dtype: engines.enter_context(VLLMEngine(dtype)) for dtype in dtypes}

        def vllm_rate(dtype: str) -> float:
            rollout = vllm[dtype].measure()
            mismatch[dtype] = max(rollout.largest_error, mismatch.get(dtype, 0.0))
            return rollout.rate

        speed = in_turn(
            {
                **{
                    name: lambda make_inference_backend=make_inference_backend: rate(make_inference_backend)
                    for name, make_inference_backend in sides.items()
                },
                **{dtype: lambda dtype=dtype: vllm_rate(dtype) for dtype in dtypes},
            },
            repeats=REPEATS,
        )
    rate(policy)
    turns = sum(turn.message.role == "assistant" for trajectory in played for turn in trajectory.turns)
    said = sum(trajectory.completion_tokens for trajectory in played)
    told = {"ours": "ours", "generate": f"`generate`, {rows}", "continuous": f"continuous batching, {requests}"}
    told |= {dtype: f"vLLM in {dtype}" for dtype in dtypes}
    anchor = "".join(
        f" Log-probabilities of vLLM in {dtype} differ from a plain float32 pass by up to {mismatch[dtype]:.1g}."
        for dtype in dtypes
    )
    if dtypes:
        anchor = (
            " vLLM, with prefix caching, plays the same model, heads of 40 values filled up to 64 by zeros: "
            f"its kernels for CPUs have none of 40.{anchor}"
        )
    table = tuple((told[name], f"{speed[name]:,.0f}", f"{speed['ours'] / speed[name]:.2f}") for name in told)
    return Findings(
        title="Rollout",
        text=(
            f"{SCENARIOS} scenarios × {SIBLINGS} desk episodes of ragged lengths, {turns:,} turns and {said:,} tokens "
            "said, with the same environment, renderer and episode code for all; only the inference backend differs. "
            "The others read the whole conversation again at each turn; continuous batching shares pages that it has "
            "read before. All return the log-probability of each token. Each backend in the fastest of "
            "the settings that "
            f"were tried; medians of {REPEATS}, runs alternate.{anchor}"
        ),
        tables=(Table(head=("inference backend", "tokens generated/s", "ours is faster by"), rows=table),),
        gist=(
            Versus(
                measure="rollout, multi-turn",
                ours=f"{speed['ours']:,.0f} tokens/s",
                against=f"`generate` {speed['generate']:,.0f}",
                ratio=speed["ours"] / speed["generate"],
                bound=2.5,
            ),
            Versus(
                measure="the same",
                ours=f"{speed['ours']:,.0f} tokens/s",
                against=f"continuous batching {speed['continuous']:,.0f}",
                ratio=speed["ours"] / speed["continuous"],
                bound=3,
            ),
            *(
                Versus(
                    measure="the same",
                    ours=f"{speed['ours']:,.0f} tokens/s",
                    against=f"vLLM in {dtype} {speed[dtype]:,.0f}",
                    ratio=speed["ours"] / speed[dtype],
                    bound=bound,
                )
                for dtype, bound in dtypes.items()
            ),
        ),
    )
