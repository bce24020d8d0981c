"""Rollout stage: G episodes of each scenario with one policy.

Episodes run concurrently, so that their turns share forward passes. A failed episode is recorded with its reason, and
the others go on. The stage fails only if more than `rollout.error_budget` of them fail.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from grpo import progress
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.rollout import EpisodeSettings, RolloutSettings
from grpo.copies import ScenarioCopies
from grpo.environments.catalog import check_scenario
from grpo.environments.environment import Environment
from grpo.errors import BudgetError, ConfigError, DataError
from grpo.policy.policy import Policy, Sampling, Session
from grpo.renderers.chat_template import Renderer
from grpo.rollout.branching import play_tree, trees_of
from grpo.rollout.curriculum import Curriculum
from grpo.rollout.episode import BranchPoint, run_episode
from grpo.rollout.timeouts import Timeouts
from grpo.scenario import Scenario
from grpo.scenarios.split import Split
from grpo.trajectories import Trajectory
from grpo.user_failures import REMEDY, is_exception, user_code

logger = logging.getLogger(__name__)


@asynccontextmanager
async def served(environment: Environment, *, concurrency: int) -> AsyncIterator[None]:
    """Hold the environment's resources. Its exceptions end the run with one sentence."""
    resources = environment.serve(concurrency=concurrency)
    with user_code("the environment's serve", remedy=REMEDY, transient=True):
        await resources.__aenter__()
    try:
        yield
    except BaseException as error:
        failure = error
        with user_code("the environment's serve", passes=lambda raised: raised is failure):
            await resources.__aexit__(type(failure), failure, failure.__traceback__)
        raise
    with user_code("the environment's serve", remedy=REMEDY, transient=True):
        await resources.__aexit__(None, None, None)


def sample_seed(run_seed: int, iteration: int | str, scenario_id: str, sample: int) -> int:
    """Seed of one sample, 63 bits, independent of shard and batch."""
    text = f"{run_seed}\0{iteration}\0{scenario_id}\0{sample}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def shard_ids(
    split: Split,
    part: int | Literal["heldout"],
    settings: RolloutSettings,
    *,
    seed: int,
    round: int,
    shard: int,
    curriculum: Curriculum,
    categories: Callable[[], Mapping[str, str]],
) -> list[str]:
    """Ids of the scenarios of one shard: of training iteration `part`, or of the held-out scenarios.

    `curriculum` and the `categories` by id are used if `settings.curriculum` is set.
    """
    if part == "heldout":
        ids = list(split.heldout)
    elif settings.curriculum is not None:
        ids = curriculum.draw(
            split.train,
            settings.curriculum,
            categories=categories,
            iteration=part,
            count=settings.scenarios,
            seed=seed,
            round=round,
        )
    else:
        ids = schedule(split.train, iteration=part, count=settings.scenarios, seed=seed, round=round)
    return ids[shard :: settings.shards]


def schedule(scenario_ids: Sequence[str], *, iteration: int, count: int, seed: int, round: int = 0) -> list[str]:
    """Scenario ids of a round of an iteration: in round 0 the next `count` of an endless series of seeded shuffles.

    [a b c], count 2 → iteration 0: c a, iteration 1: b | b, iteration 2: a c …

    An iteration uses a scenario once, so that its samples are one group. Each later round takes the next `count` of
    the scenarios that the iteration has not used, in another seeded order, or none if all were used.

    [a b c d e], count 2, iteration 0 → round 0: c a, round 1: e b, round 2: d, round 3: nothing
    """
    if not scenario_ids:
        raise DataError(
            "no scenario to roll out, because the training split is empty. Lower scenarios.validation_fraction"
        )
    count = min(count, len(scenario_ids))
    chosen: list[str] = []
    for position in range(iteration * count, (iteration + 1) * count):
        epoch, index = divmod(position, len(scenario_ids))
        order = list(scenario_ids)
        random.Random(f"{seed}/{epoch}").shuffle(order)
        chosen.append(order[index])
    first = list(dict.fromkeys(chosen))
    if round == 0:
        return first
    others = [scenario_id for scenario_id in scenario_ids if scenario_id not in first]
    random.Random(f"{seed}/further/{iteration}").shuffle(others)
    return others[(round - 1) * count : round * count]


def collect(
    scenarios: Sequence[Scenario],
    policy: Policy,
    environment: Environment,
    renderer: Renderer,
    settings: EpisodeSettings,
    *,
    group_size: int,
    temperature: float,
    run_seed: int,
    iteration: int | str,
    agent: MultiTurnAgent | None = None,
    trees: int | None = None,
) -> list[Trajectory]:
    """Sample `group_size` episodes per scenario. Returns them by scenario, then by sample.

    Group size, temperature and `trees` are parameters, because they differ between training and evaluation. `trees` of
    the episodes are played from the start, and the others branch off from them. None plays all from the start. The
    `agent` adds its prompt and hooks to the policy. The default has neither.

    Raises `BudgetError` as soon as more than `error_budget` of the episodes have failed, including timeouts, and
    `ConfigError` if the agent shortens its context, or if the renderer does not know its tools.
    """
    agent = agent or MultiTurnAgent()
    check_agent(agent, renderer)
    collection = _Collection(
        policy=policy,
        environment=environment,
        renderer=renderer,
        agent=agent,
        settings=settings,
        temperature=temperature,
        run_seed=run_seed,
        iteration=iteration,
        total=len(scenarios) * group_size,
    )
    parts = trees_of(group_size, trees or group_size)  # without branches, each episode is a root
    try:
        with user_code("an episode", remedy=REMEDY, passes=is_exception):
            asyncio.run(collection.run(scenarios, parts))
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from None
    warn_of_overridden(collection.trajectories)
    return collection.trajectories


@dataclass(slots=True, kw_only=True)
class _Collection:
    """One call of `collect`: what all its episodes share, and the episodes that have ended.

    `run` starts a task for each tree, which plays its episodes by `_play`. Without branches, a tree is one episode.
    """

    policy: Policy
    environment: Environment
    renderer: Renderer
    agent: MultiTurnAgent
    settings: EpisodeSettings
    temperature: float
    run_seed: int
    iteration: int | str
    total: int
    """Number of episodes."""
    done: int = 0
    failed: list[Trajectory] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)
    """All episodes, by scenario and then by sample, after the end of `run`."""

    async def run(self, scenarios: Sequence[Scenario], parts: Sequence[tuple[int, ...]]) -> None:
        """Play all episodes. `parts` are the samples of each tree of a group.

        Sets `trajectories` instead of returning them, because `asyncio.run` would print what a coroutine returns.
        """
        slots = asyncio.Semaphore(self.settings.concurrency)
        concurrency = min(self.settings.concurrency, self.total)
        async with (
            served(self.environment, concurrency=concurrency),
            self.policy.sampler(concurrency=concurrency, renderer=self.renderer) as sampler,
        ):
            copies = [ScenarioCopies(scenario) for scenario in scenarios]
            await check_scenarios(self.environment, copies)
            timeouts = Timeouts.start(self.settings)

            async def tree(copies: ScenarioCopies, samples: Sequence[int]) -> list[Trajectory]:
                seeds = [self._seed(copies, sample) for sample in samples]
                return await play_tree(samples, partial(self._play, timeouts, copies), sampler, slots, seeds=seeds)

            async with asyncio.TaskGroup() as group:
                groups = [[group.create_task(tree(c, samples)) for samples in parts] for c in copies]
        for tasks in groups:
            episodes = [trajectory for task in tasks for trajectory in task.result()]
            self.trajectories.extend(sorted(episodes, key=lambda trajectory: trajectory.sample))

    def _seed(self, copies: ScenarioCopies, sample: int) -> int:
        return sample_seed(self.run_seed, self.iteration, copies.scenario.id, sample)

    async def _play(
        self,
        timeouts: Timeouts,
        copies: ScenarioCopies,
        sample: int,
        session: Session,
        *,
        start: BranchPoint | None = None,
        points: list[BranchPoint] | None = None,
    ) -> Trajectory:
        """Play one episode and count it. Raises `BudgetError` if too many have failed."""
        trajectory = await run_episode(
            self.agent,
            self.environment,
            copies,
            session,
            self.renderer,
            Sampling(
                temperature=self.temperature,
                max_new_tokens=self.settings.max_new_tokens,
                seed=self._seed(copies, sample),
            ),
            sample=sample,
            policy_hash=self.policy.hash,
            max_context=min(self.settings.max_context, self.policy.max_context),
            on_truncation=self.settings.on_truncation,
            timeouts=timeouts,
            start=start,
            points=points,
        )
        if trajectory.stop == "failed":
            self.failed.append(trajectory)
        if len(self.failed) > self.settings.error_budget * self.total:
            first = self.failed[0]
            raise BudgetError(
                f"{len(self.failed)} of {self.total} episodes have failed, more than rollout.error_budget "
                f"{self.settings.error_budget:.0%}. The others were ended. The first at {first.place}: {first.error}"
            )
        self.done += 1
        progress.report("rollout", self.done, self.total)
        return trajectory


def check_agent(agent: MultiTurnAgent, renderer: Renderer) -> None:
    """Raise `ConfigError` if the agent shortens its context, or if the renderer does not know its tools.

    Also if two tools have one name, because the agent would execute its own, and the environment's never.
    """
    agent.require_append_only()
    names = [tool.name for tool in renderer.tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"two tools have the name {', '.join(twice)}. Rename the agent's tool, because the environment would never "
            "get a call of this name"
        )
    unknown = [tool.name for tool in agent.tools if tool not in renderer.tools]
    if unknown:
        raise ConfigError(
            f"the renderer does not show the agent's tools {', '.join(unknown)}. Make it with "
            "tools=(*environment.tools, *agent.tools)"
        )


async def check_scenarios(environment: Environment, scenarios: Sequence[ScenarioCopies]) -> None:
    """Let the environment check the scenarios before their episodes begin."""
    for copies in scenarios:
        await check_scenario(environment, copies.copy())


def first_failure(failure: BaseException) -> BaseException:
    """The first exception of a group of a group …, or the failure itself."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


def warn_of_overridden(trajectories: Sequence[Trajectory]) -> None:
    """Log how many turns are not trained on, because the agent's own code changed them."""
    overridden = sum(trajectory.overridden_turns for trajectory in trajectories)
    if overridden:
        logger.warning(
            "%d of %d turns were changed or written by the agent's own code after sampling. They are not trained on",
            overridden,
            sum(turn.message.role == "assistant" for trajectory in trajectories for turn in trajectory.turns),
        )
