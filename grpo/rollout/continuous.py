"""Continuous rollout: episodes go on while the policy's weights change.

learner     update 0 on window 0   │ update 1 on window 1     │ update 2 …
weights   v0                       v1                         v2
episode    user, v0 v0, tool …………………………… v1 v1 v1, user          policy_spans: v0 from token 9, v1 from token 31

One sampler generates for all versions. In this process, a new version replaces its model between two forward passes,
also in the middle of a turn. On rollout servers, turns that begin after a server has loaded the new version use it,
and turns in progress end with the version that they began with. In both cases the conversation is read again by the new
weights, so that the log-probability of each token is the one that the policy of its span gives to it, see
`TurnSampler.replace_model` and `ServersSampler`.

`grpo.rollout.windows` decides which groups begin and which groups an update gets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import cast

from grpo import progress
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.rollout import RolloutSettings
from grpo.copies import ScenarioCopies
from grpo.environments.environment import Environment
from grpo.policy.policy import ContinuousSampler, ContinuousSession, Policy, Sampling
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import check_agent, check_scenarios, sample_seed, served, warn_of_overridden
from grpo.rollout.episode import run_episode
from grpo.rollout.timeouts import Timeouts
from grpo.rollout.windows import Group, GroupQueue, Window
from grpo.scenario import Scenario
from grpo.trajectories import PolicySpan, Trajectory
from grpo.user_failures import REMEDY, UserCodeError


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A version of the policy that the sampler can use now."""

    policy: Policy


class ContinuousRollout:
    """Episodes of the groups of a queue with the newest policy, until the last window is closed.

    `scenarios` returns the scenarios of ids, in their order. Timeouts of the stage count from the beginning of a group.
    Raises `ConfigError` like `grpo.rollout.collect.collect`.
    """

    def __init__(
        self,
        queue: GroupQueue,
        policy: Policy,
        environment: Environment,
        renderer: Renderer,
        settings: RolloutSettings,
        *,
        scenarios: Callable[[Sequence[str]], Sequence[Scenario]],
        run_seed: int,
        agent: MultiTurnAgent | None = None,
    ) -> None:
        self._queue = queue
        self._policy = policy
        self._environment, self._renderer, self._agent = environment, renderer, agent or MultiTurnAgent()
        check_agent(self._agent, renderer)
        self._settings = settings
        self._scenarios = scenarios
        self._run_seed = run_seed
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._events: asyncio.Queue[Policy | _Prepared | tuple[Group, int, Trajectory] | UserCodeError]
        self._events = asyncio.Queue()
        self._one_preparation = asyncio.Lock()
        self._dropped: set[tuple[Group, int]] = set()
        self._sampler: ContinuousSampler
        self._sessions: dict[tuple[Group, int], ContinuousSession] = {}
        self._tasks: dict[tuple[Group, int], asyncio.Task[None]] = {}
        self._busy_s, self._busy_since = 0.0, 0.0

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one episode was in progress."""
        return self._busy_s + (time.perf_counter() - self._busy_since if self._tasks else 0.0)

    def publish(self, policy: Policy) -> None:
        """Generate further tokens with the next version of the policy. Call it on the event loop of `run`."""
        self._events.put_nowait(policy)

    async def run(self, deliver: Callable[[Window], None]) -> None:
        """Generate until the last window is closed. `deliver` gets each window when it is closed.

        Raises `BudgetError` if too many episodes fail.
        """
        queue, settings = self._queue, self._settings
        concurrency = min(settings.concurrency, queue.most_groups * queue.group_size)
        async with (
            served(self._environment, concurrency=concurrency),
            self._policy.sampler(concurrency=concurrency, renderer=self._renderer) as sampler,
            asyncio.TaskGroup() as tasks,
        ):
            self._sampler = cast(ContinuousSampler, sampler)
            preparing: list[asyncio.Task[None]] = []
            await self._begin(tasks)
            while not queue.is_over:
                event = await self._events.get()
                if isinstance(event, UserCodeError):
                    raise event
                if isinstance(event, tuple):
                    queue.complete(*event)
                    progress.report("rollout_window", *queue.progress)
                elif isinstance(event, _Prepared):
                    self._replace_policy(event.policy)
                else:
                    preparing.append(tasks.create_task(self._prepare(event)))
                    continue
                while (window := queue.close(self._first_policy)) is not None:
                    for episode in window.dropped:
                        if episode in self._tasks:
                            self._dropped.add(episode)
                            self._tasks[episode].cancel()
                    warn_of_overridden(window.trajectories)
                    deliver(window)
                await self._begin(tasks)
            for task in preparing:
                task.cancel()

    async def _prepare(self, policy: Policy) -> None:
        async with self._one_preparation:  # in the order of the versions
            await self._sampler.prepare_policy(policy)
            self._events.put_nowait(_Prepared(policy))

    def _replace_policy(self, policy: Policy) -> None:
        self._queue.publish(policy.hash)
        if policy.hash != self._policy.hash:  # an update without a learning signal leaves the policy unchanged
            self._sampler.replace_policy(policy)
        self._policy = policy

    async def _begin(self, tasks: asyncio.TaskGroup) -> None:
        """Start the episodes of the groups that may begin."""
        groups = self._queue.begin()
        if not groups:
            return
        scenarios = [ScenarioCopies(s) for s in self._scenarios([group.draw.scenario_id for group in groups])]
        await check_scenarios(self._environment, scenarios)
        timeouts = Timeouts.start(self._settings)
        if not self._tasks:
            self._busy_since = time.perf_counter()
        for group, copies in zip(groups, scenarios, strict=True):
            for sample in group.episodes:
                task = tasks.create_task(self._episode(group, sample, copies, timeouts))
                self._tasks[group, sample] = task
                task.add_done_callback(lambda task, episode=(group, sample): self._end(task, episode))  # type: ignore[misc]

    def _end(self, task: asyncio.Task[None], episode: tuple[Group, int]) -> None:
        if task.cancelled() and episode not in self._dropped:  # a group that waits for it would never be complete
            group, sample = episode
            self._events.put_nowait(
                UserCodeError(
                    f"scenario {group.draw.scenario_id} sample {sample}: the task of the episode was cancelled by code "
                    f"of the environment or the agent. {REMEDY}"
                )
            )
        self._dropped.discard(episode)
        self._sessions.pop(episode, None)
        del self._tasks[episode]
        if not self._tasks:
            self._busy_s += time.perf_counter() - self._busy_since

    async def _episode(self, group: Group, sample: int, copies: ScenarioCopies, timeouts: Timeouts) -> None:
        """Run an episode, and report it with the policies that generated its tokens."""
        settings = self._settings
        async with self._slots:
            with closing(self._sampler.open()) as session:
                self._sessions[group, sample] = session
                trajectory = await run_episode(
                    self._agent,
                    self._environment,
                    copies,
                    session,
                    self._renderer,
                    Sampling(
                        temperature=settings.temperature,
                        max_new_tokens=settings.max_new_tokens,
                        seed=sample_seed(self._run_seed, group.draw.iteration, copies.scenario.id, sample),
                    ),
                    sample=sample,
                    policy_hash=self._policy.hash,
                    max_context=min(settings.max_context, self._policy.max_context),
                    on_truncation=settings.on_truncation,
                    timeouts=timeouts,
                )
        self._events.put_nowait((group, sample, self._with_policies(trajectory, session.policy_spans)))

    def _with_policies(self, trajectory: Trajectory, spans: Sequence[PolicySpan]) -> Trajectory:
        """The trajectory with the policies that generated its tokens.

        A turn that timed out may have begun a span whose tokens are not in the trajectory. An episode without tokens
        counts for the newest policy.
        """
        spans = [span for span in spans if span.start < len(trajectory.token_ids)]
        first = spans[0].policy_hash if spans else self._policy.hash
        return replace(trajectory, policy_hash=first, policy_spans=tuple(spans) if len(spans) > 1 else ())

    def _first_policy(self, group: Group, sample: int) -> str | None:
        """Hash of the policy that generated the first token of an episode, or None if it has no token yet."""
        session = self._sessions.get((group, sample))
        return session.policy_spans[0].policy_hash if session is not None and session.policy_spans else None
