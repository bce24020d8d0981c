"""Beginning of a continuous rollout, and its end with the run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.agents.catalog import make_agent
from grpo.artifacts import Artifact
from grpo.config.agent import AnyAgentSettings
from grpo.config.environments import EnvironmentSettings
from grpo.config.renderer import RendererSettings
from grpo.config.rollout import RolloutSettings
from grpo.environments.catalog import make_environment
from grpo.identity.code import UserCode
from grpo.policy.renderer import make_renderer
from grpo.reads.recording import recorded_reads
from grpo.rollout.collect import schedule
from grpo.rollout.continuous import ContinuousRollout
from grpo.rollout.live import LiveRollout, live_rollouts
from grpo.rollout.windows import GroupQueue, QueueState
from grpo.scenario import Scenario
from grpo.scenarios.table import read_scenarios

if TYPE_CHECKING:
    from grpo.policy.transformers.model import TransformersPolicy


def begin_rollout(
    policy: TransformersPolicy,
    table: Path,
    train: Sequence[str],
    *,
    renderer: RendererSettings | None,
    agent: AnyAgentSettings,
    environment: EnvironmentSettings,
    settings: RolloutSettings,
    window: int,
    windows: int,
    state: QueueState,
    seed: int,
    code: UserCode | None,
    exclude: tuple[Path, ...],
) -> LiveRollout:
    """Begin with window `window` of `windows`, version `window` of the policy, and the scenarios `train` of a table.

    `code` is the user's code that the rollout runs. What it reads is recorded, without the folders `exclude`.
    """
    queue = GroupQueue(
        cache(lambda index: schedule(train, iteration=index, count=settings.scenarios, seed=seed)),
        group_size=settings.group_size,
        max_staleness=settings.max_staleness,
        windows=windows,
        error_budget=settings.error_budget,
        policy_hash=policy.hash,
        window=window,
        state=state,
    )
    world, player = make_environment(environment), make_agent(agent)

    def read(ids: Sequence[str]) -> list[Scenario]:
        by_id = {scenario.id: scenario for scenario in read_scenarios(table, ids=ids)}
        return [by_id[scenario_id] for scenario_id in ids]

    rollout = ContinuousRollout(
        queue,
        policy,
        world,
        make_renderer(policy.tokenizer, tools=(*world.tools, *player.tools), settings=renderer),
        settings,
        scenarios=read,
        run_seed=seed,
        agent=player,
    )
    return LiveRollout(
        rollout, nullcontext() if code is None else recorded_reads(code.modules, code.texts), exclude=exclude
    )


def window_key(store: str, window: Artifact) -> str:
    """Key of a window in `live_rollouts`."""
    return f"{window.sha256} {store}"


def end_rollout(store: str, window: Artifact) -> None:
    """End the rollout that goes on after a window, if there is one in this process."""
    live_rollouts.end(window_key(store, window))
