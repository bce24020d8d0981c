from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo.policy.catalog import open_policy
from grpo.policy.openai import CompletionsPolicy
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.tokenizer import load_tokenizer
from grpo.policy.transformers.model import load
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.trajectories import Trajectory
from tests.doubles import desk_scenarios
from tests.vllm.engine import MARKS, desk_config, largest_error
from tests.vllm.servers import EXACT, vllm_server

pytestmark = MARKS

PROMPT = [5, 20, 31, 44]


@pytest.fixture(scope="module")
def root(clerk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a real `vllm serve` with the options that training needs."""
    options = ("--served-model-name", "clerk", "--generation-config", "vllm")
    with vllm_server(clerk, tmp_path_factory.mktemp("serve"), *EXACT, *options) as server:
        yield server.url


@pytest.fixture
def policy(root: str, monkeypatch: pytest.MonkeyPatch) -> CompletionsPolicy:
    """The server as an address of a config names it."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    opened = open_policy(f"openai-tokens+{root}/v1#clerk", policy_hash="served")
    assert isinstance(opened, CompletionsPolicy)
    return opened


@pytest.fixture(scope="module")
def renderer(clerk: Path) -> Renderer:
    from grpo.environments.catalog import make_environment

    return Renderer(load_tokenizer(clerk), tools=make_environment(desk_config().environment).tools)


def _episodes(policy: CompletionsPolicy, renderer: Renderer, scenarios: int) -> list[Trajectory]:
    from grpo.environments.catalog import make_environment

    config = desk_config()
    return collect(
        desk_scenarios(scenarios),
        policy,
        make_environment(config.environment),
        renderer,
        config.rollout,
        group_size=4,
        temperature=1.0,
        run_seed=config.seed,
        iteration=0,
    )


def test_episodes_through_the_server_have_our_log_probabilities(
    policy: CompletionsPolicy, renderer: Renderer, clerk: Path
):
    """32 conversations at once with tool results, in tokens: within 1e-3 of a plain forward pass."""
    trajectories = _episodes(policy, renderer, scenarios=8)
    assert any(turn.message.role == "tool" for trajectory in trajectories for turn in trajectory.turns)
    error, tokens = largest_error(trajectories, load(clerk))
    print(f"largest difference {error:.1e} over {tokens} tokens")
    assert tokens > 500
    assert error < 1e-3


def _turns(policy: CompletionsPolicy, renderer: Renderer, *samplings: Sampling) -> list[Generation]:
    async def run() -> list[Generation]:
        async with policy.sampler(concurrency=8, renderer=renderer) as sampler:
            sessions = [sampler.open() for _ in samplings]
            prompt = Prompt(new_ids=renderer.tokenizer("hello")["input_ids"])
            return list(
                await asyncio.gather(
                    *(session.generate(prompt, sampling) for session, sampling in zip(sessions, samplings, strict=True))
                )
            )

    return asyncio.run(run())


def test_a_turn_ends_on_a_stop_token_or_at_its_length(policy: CompletionsPolicy, renderer: Renderer):
    """The stop token is part of the turn, and its last; without one the turn has all its tokens."""
    turns = _turns(
        policy, renderer, *(Sampling(temperature=1.0, max_new_tokens=length, seed=7) for length in (3, 100, 100, 200))
    )
    assert {turn.stop for turn in turns} == {"stop", "length"}
    for turn in turns:
        stops = [token == renderer.stop_id for token in turn.token_ids]
        assert any(stops) == (turn.stop == "stop")
        assert not any(stops[:-1])
    assert len(turns[0].token_ids) == 3


def test_a_seed_decides_the_turn(policy: CompletionsPolicy, renderer: Renderer):
    """In whatever batch it is: among others of other seeds, and alone."""
    samplings = [Sampling(temperature=1.0, max_new_tokens=40, seed=seed) for seed in (1, 2, 1, 3)]
    turns = [turn.token_ids for turn in _turns(policy, renderer, *samplings)]
    assert turns[0] == turns[2]
    assert len({tuple(turn) for turn in turns}) == 3
    assert _turns(policy, renderer, samplings[1])[0].token_ids == turns[1]


def test_a_cancelled_turn_is_aborted_by_the_server(policy: CompletionsPolicy, renderer: Renderer, root: str):
    """Turns that were running when their episodes ended are not generated to their end."""
    ended = r'request_success_total{[^}]*finished_reason="(?:stop|length)"[^}]*}'
    before = _metric(root, ended)

    async def cancelled() -> int:
        async with policy.sampler(concurrency=256, renderer=renderer) as sampler:
            turns = [
                asyncio.create_task(
                    sampler.open().generate(
                        Prompt(new_ids=PROMPT), Sampling(temperature=2.0, max_new_tokens=1000, seed=seed)
                    )
                )
                for seed in range(256)
            ]
            await asyncio.to_thread(_wait_until, lambda: _metric(root, RUNNING) > 0)
            for turn in turns:
                turn.cancel()
            outcomes = await asyncio.gather(*turns, return_exceptions=True)
            assert all(isinstance(outcome, Generation | asyncio.CancelledError) for outcome in outcomes)
            return sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)

    assert asyncio.run(cancelled()) > 0
    _wait_until(lambda: _metric(root, RUNNING) == 0)
    assert _metric(root, ended) - before < 256


RUNNING = r"num_requests_running{[^}]*}"


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def _metric(root: str, pattern: str) -> float:
    """Sum of the values of a metric."""
    with urllib.request.urlopen(f"{root}/metrics", timeout=30) as response:
        lines = re.findall(rf"^vllm:{pattern} ([\d.e+]+)$", response.read().decode(), re.MULTILINE)
    assert lines, pattern
    return sum(map(float, lines))
