"""Discrete-event simulation of rollouts on servers and of the updates that train on them.

It computes when each event happens and generates no tokens, so that it also answers for GPUs that nobody has here.
`tests.benchmarks.simulation` measures two real servers, compares, and extrapolates.

    server       reads the new tokens of a prompt while it does nothing else, then generates one token for each of its
                 turns in each step. A step takes longer the more turns it has. Turns beyond its slots wait in line
    episode      turns with waits for tools between them. It keeps its server, which keeps its keys and values as long
                 as the weights stay the same
    stages       all episodes of an iteration, then its update, then the weights go to the servers
    continuous   `grpo.rollout.windows.GroupQueue` decides which groups begin, are trained on, and are dropped. New
                 weights go to the servers while episodes go on, and serve each turn that begins afterwards

Not simulated: servers that fail, hedged turns, memory for keys and values, and cores or links that both sides share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import numpy as np

from grpo.rollout.windows import Group, GroupQueue, Window
from grpo.trajectories import Trajectory
from tests.benchmarks.simulated_servers import Clock, Episode, Rollout, Run, Speed

Mode = Literal["stages", "continuous"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run: machines, episodes and updates."""

    mode: Mode
    servers: int
    speed: Speed
    groups: int
    """Groups of an iteration."""
    group_size: int
    concurrency: int
    """Episodes at once, over all servers."""
    max_staleness: int = 0
    update_s: float
    """Seconds of an update that do not depend on its episodes, scoring and files included."""
    episode_update_s: float
    """Further seconds of an update for each of its episodes."""
    load_s: float
    """Seconds in which the weights of one version go to all servers."""
    updates: int
    """Updates that are simulated."""
    warm: int = 1
    """First updates that are not counted."""
    ahead: int = 0
    """Updates of the run after the last one that is simulated. A continuous rollout begins groups for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Means over the counted updates."""

    update_s: float
    """Seconds from one update's end to the next."""
    serving: float
    """Share of time in which a server has a turn, over all servers."""
    training: float
    """Share of time in which an update is computed."""
    turns_at_once: float
    """Turns of a server in the time in which it has one."""
    staleness: float
    """Updates between the oldest token of a trained episode and the policy that it trains."""
    dropped: float
    """Share of the episodes that were dropped as too stale."""


@dataclass(slots=True)
class _Totals:
    """What was counted up to the end of an update."""

    time: float
    busy_s: float
    turn_s: float
    training_s: float
    staleness: int
    dropped: int
    trained: int


class Simulation:
    """One run of a plan on an endless row of episodes."""

    def __init__(self, plan: Plan, episodes: Iterator[Episode]) -> None:
        self.ends: list[float] = []
        """Time of the end of each update."""
        self._plan, self._episodes = plan, episodes
        self._clock = Clock()
        self._rollout = Rollout(self._clock, plan.speed, servers=plan.servers, concurrency=plan.concurrency)
        self._training_s = self._loaded_at = 0.0
        self._staleness = self._dropped = self._trained = 0
        self._totals: list[_Totals] = []

    def run(self) -> Outcome:
        """Run to the end of the last update."""
        if self._plan.mode == "stages":
            self._begin_iteration()
        else:
            self._queue = _queue(self._plan)
            self._runs: dict[tuple[Group, int], Run] = {}
            self._windows: deque[Window] = deque()
            self._is_training = False
            self._begin_groups()
        self._clock.run(lambda: len(self.ends) == self._plan.updates)
        return self._outcome()

    def _begin_iteration(self) -> None:
        waiting = self._plan.groups * self._plan.group_size

        def ended(_: Run) -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                self._update([0] * (self._plan.groups * self._plan.group_size), loaded)

        def loaded() -> None:
            self._rollout.version += 1
            self._clock.after(self._plan.load_s, self._begin_iteration)

        for _ in range(waiting):
            self._rollout.begin(next(self._episodes), ended)

    def _update(self, staleness: Sequence[int], then: Callable[[], None]) -> None:
        seconds = self._plan.update_s + self._plan.episode_update_s * len(staleness)

        def end() -> None:
            self._training_s += seconds
            self._trained += len(staleness)
            self._staleness += sum(staleness)
            self.ends.append(self._clock.now)
            self._totals.append(self._count())
            then()

        self._clock.after(seconds, end)

    def _begin_groups(self) -> None:
        for group in self._queue.begin():
            for sample in list(group.episodes):
                ended = partial(self._complete, group, sample)
                run = self._rollout.begin(next(self._episodes), ended)
                self._runs[group, sample] = run

    def _complete(self, group: Group, sample: int, run: Run) -> None:
        del self._runs[group, sample]
        assert run.version is not None
        self._queue.complete(group, sample, _trajectory(group, sample, run.version))
        self._close_windows()

    def _close_windows(self) -> None:
        while (window := self._queue.close(self._first_policy)) is not None:
            self._dropped += len(window.dropped)
            for episode in window.dropped:
                if episode in self._runs:
                    self._rollout.drop(self._runs.pop(episode))
            self._windows.append(window)
        self._begin_groups()
        self._train()

    def _train(self) -> None:
        if self._is_training or not self._windows:
            return
        self._is_training = True
        self._update(self._windows.popleft().staleness, self._trained_window)

    def _trained_window(self) -> None:
        self._is_training = False
        self._loaded_at = max(self._clock.now, self._loaded_at) + self._plan.load_s  # one version after the other
        self._clock.after(self._loaded_at - self._clock.now, self._publish)
        self._train()

    def _publish(self) -> None:
        self._rollout.version += 1
        self._queue.publish(str(self._rollout.version))
        self._close_windows()

    def _first_policy(self, group: Group, sample: int) -> str | None:
        version = self._runs[group, sample].version
        return None if version is None else str(version)

    def _count(self) -> _Totals:
        for server in self._rollout.servers:
            server.settle()
        return _Totals(
            time=self._clock.now,
            busy_s=sum(server.busy_s for server in self._rollout.servers),
            turn_s=sum(server.turn_s for server in self._rollout.servers),
            training_s=self._training_s,
            staleness=self._staleness,
            dropped=self._dropped,
            trained=self._trained,
        )

    def _outcome(self) -> Outcome:
        first, last = self._totals[self._plan.warm - 1], self._totals[-1]
        seconds, trained = last.time - first.time, last.trained - first.trained
        dropped, busy_s = last.dropped - first.dropped, last.busy_s - first.busy_s
        return Outcome(
            update_s=seconds / (self._plan.updates - self._plan.warm),
            serving=busy_s / (seconds * self._plan.servers),
            training=(last.training_s - first.training_s) / seconds,
            turns_at_once=(last.turn_s - first.turn_s) / busy_s,
            staleness=(last.staleness - first.staleness) / trained,
            dropped=dropped / (dropped + trained),
        )


def _queue(plan: Plan) -> GroupQueue:
    return GroupQueue(
        cache(lambda iteration: [f"{iteration}-{index}" for index in range(plan.groups)]),
        group_size=plan.group_size,
        max_staleness=plan.max_staleness,
        windows=plan.updates + plan.ahead,
        error_budget=1.0,
        policy_hash="0",
    )


def _trajectory(group: Group, sample: int, version: int) -> Trajectory:
    """An episode without tokens, of which the queue reads the policy."""
    return Trajectory(
        scenario_id=group.draw.scenario_id,
        scenario_hash="",
        category="",
        difficulty="",
        sample=sample,
        seed=0,
        policy_hash=str(version),
        renderer_hash="",
        temperature=1.0,
        turns=(),
        token_ids=np.zeros(0, np.int32),
        loss_mask=np.zeros(0, np.bool_),
        sampler_logprobs=np.zeros(0, np.float32),
        stop="terminated",
    )
