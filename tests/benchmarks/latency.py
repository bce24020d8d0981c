"""Cost of slow tools, when many episodes wait for them concurrently."""

from __future__ import annotations

import asyncio

from grpo.config.pipeline import PipelineConfig
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.environments.support_desk.desk import SupportDesk
from grpo.messages import Message
from grpo.policy.transformers.model import TransformersPolicy
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory
from tests.benchmarks.desk import desk_policy, quickstart
from tests.benchmarks.measure import in_turn, seconds
from tests.benchmarks.page import Findings, Table
from tests.doubles import desk_scenarios

EPISODES, DELAY_S, LONGEST, REPEATS = 64, 0.05, 3, 3


class SlowDesk(SupportDesk):
    """A support desk whose every answer takes a while."""

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        await asyncio.sleep(DELAY_S)
        return await super().step(state, action)


def _play(
    policy: TransformersPolicy, config: PipelineConfig, scenarios: list[Scenario], desk: SupportDesk
) -> list[Trajectory]:
    """One episode of each scenario; what is said does not depend on who else plays."""
    return collect(
        scenarios,
        policy,
        desk,
        Renderer(policy.tokenizer, tools=desk.tools),
        config.rollout,
        group_size=1,
        temperature=config.rollout.temperature,
        run_seed=config.seed,
        iteration=0,
    )


def measure() -> Findings:
    """All episodes at once, against the slowest of them alone."""
    config, policy = quickstart(), desk_policy()
    scenarios = desk_scenarios(EPISODES)
    slow, quick = SlowDesk(), SupportDesk()
    played = _play(policy, config, scenarios, slow)
    order = sorted(range(EPISODES), key=lambda k: (_steps(played[k]), played[k].completion_tokens), reverse=True)
    longest = [scenarios[k] for k in order[:LONGEST]]
    sides = {
        "all": lambda: seconds(lambda: _play(policy, config, scenarios, slow)),
        "no sleep": lambda: seconds(lambda: _play(policy, config, scenarios, quick)),
    }
    for scenario in longest:
        sides[scenario.id] = lambda scenario=scenario: seconds(lambda: _play(policy, config, [scenario], slow))
    taken = in_turn(sides, repeats=REPEATS)
    together, awake = taken.pop("all"), taken.pop("no sleep")
    slowest = max(taken.values())
    waited = sum(_steps(trajectory) for trajectory in played) * DELAY_S
    rows = (
        (f"{EPISODES} episodes at once", f"{together:.2f}"),
        ("the same with tools that do not sleep", f"{awake:.2f}"),
        ("the slowest of them alone", f"{slowest:.2f}"),
        ("what the tools slept in all", f"{waited:.2f}"),
    )
    return Findings(
        title="Slow tools",
        text=(
            f"{EPISODES} desk episodes in which every answer of the world takes {1000 * DELAY_S:.0f} ms. Together they "
            f"take {together / slowest:.2f} times as long as the slowest takes alone. Medians of {REPEATS}; alone the "
            f"{LONGEST} episodes with the most turns were played."
        ),
        tables=(Table(head=("what", "s"), rows=rows),),
    )


def _steps(trajectory: Trajectory) -> int:
    """Number of environment steps."""
    return sum(turn.message.role == "assistant" for turn in trajectory.turns)
