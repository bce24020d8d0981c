"""Scoring of a rollout: the score stage.

Rewards are computed after the rollout and not during it. If only a reward or its weight changes, the episodes therefore
come from the cache, and are only scored again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice, zip_longest
from operator import attrgetter

from grpo import interrupts
from grpo.copies import ScenarioCopies
from grpo.errors import BudgetError, RewardError, Unscored
from grpo.rewards.judge.assertions import AssertionJudge
from grpo.rewards.reward import Episode, RewardFunction, RewardResult, checked_results, errors_at, reward_code
from grpo.scenario import Scenario
from grpo.strict_json import NotStrictJSON, encode
from grpo.trajectories import NOTHING_EXPECTED, Trajectory
from grpo.user_failures import is_exception, user_code

logger = logging.getLogger(__name__)

TIMEOUT_S = 1800.0
"""Default of `rollout.reward_timeout_s`."""
_MARGIN_S = 2.0
"""Time after which a reward that waits is ended, beyond its limit: one that blocks is named first."""
_SETTING = "rollout.reward_timeout_s"
_LATE_STEPS = 16
"""Steps of the event loop after the time of a group, in which its results may still arrive."""
_GROUPS_AT_ONCE = 16
"""Groups scored at the same time: a reward that calls a server answers them together."""


def score(
    trajectories: Iterable[Trajectory],
    reward: RewardFunction,
    scenarios: Mapping[str, Scenario] | None = None,
    *,
    judge: AssertionJudge | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Iterator[Trajectory]:
    """Give each trajectory its terminal reward and breakdown, in order. The members of a group must stand together.

    `scenarios`, by id, give rewards the expected outcome. `judge` completes outcomes with unjudged assertions before
    the reward sees them. A score that an episode had before is replaced. A failed episode and an episode without a
    score have reward None, which does not mean 0. Only a few groups are held at a time. Raises `RewardError` with the
    place if a reward cannot score at all, raises, or takes longer than `timeout_s` for a group. If a reward blocks, it
    can be ended only in the main thread.
    """
    by_id = scenarios or {}
    groups = (list(members) for _, members in groupby(trajectories, key=attrgetter("scenario_id")))

    scored: list[list[Trajectory]] = []

    async def score_groups(window: Sequence[list[Trajectory]]) -> None:  # a runner would format what this returns
        with interrupts.time_limit(timeout_s, f"blocked for more than {timeout_s:g} s ({_SETTING})") as limit:
            alive = asyncio.create_task(_renew(limit))
            try:
                scored[:] = await asyncio.gather(*(_score_group(g, reward, by_id, judge, timeout_s) for g in window))
            finally:
                alive.cancel()

    with asyncio.Runner() as runner:
        while window := list(islice(groups, _GROUPS_AT_ONCE)):
            with user_code("a reward", error=RewardError, passes=is_exception):
                runner.run(score_groups(window))
            for group in scored:
                yield from group


def score_rollout(
    trajectories: Iterable[Trajectory],
    reward: RewardFunction,
    scenarios: Mapping[str, Scenario] | None = None,
    *,
    judge: AssertionJudge | None = None,
    error_budget: float,
    timeout_s: float = TIMEOUT_S,
) -> list[Trajectory]:
    """Score a whole rollout, see `score`.

    Raises `BudgetError` if more than `error_budget` of the episodes could not be scored, and `RewardError` if none
    could, because their success includes a part that needs a judge.
    """
    scored = list(score(trajectories, reward, scenarios, judge=judge, timeout_s=timeout_s))
    unscored = [trajectory for trajectory in scored if trajectory.stop != "failed" and trajectory.total_reward is None]
    # a scenario without an expectation and a missing judge are counted, but are not an error
    unscored = _without_unjudged(scored, unscored, judged=judge is not None)
    if len(unscored) > error_budget * len(scored):
        raise BudgetError(
            f"{len(unscored)} of {len(scored)} episodes could not be judged, more than rollout.error_budget "
            f"{error_budget:.0%}. The first at {unscored[0].place}: {unscored[0].error}"
        )
    return scored


def _without_unjudged(
    scored: Sequence[Trajectory], unscored: Sequence[Trajectory], *, judged: bool
) -> list[Trajectory]:
    """Unscored episodes that are errors.

    An episode is not an error if its scenario expects nothing, or if only a judge can tell a part of its success and
    the config has none. The number of such episodes is logged. Raises `RewardError` if no other finished episode is
    left.
    """
    finished = sum(trajectory.stop != "failed" for trajectory in scored)
    open_parts = {trajectory.place: _unjudged(trajectory) for trajectory in unscored}
    aimless = [trajectory for trajectory in unscored if NOTHING_EXPECTED in open_parts[trajectory.place]]
    waiting = [t for t in unscored if not judged and open_parts[t.place] and t not in aimless]
    if not aimless and not waiting:
        return list(unscored)
    reasons = []
    if aimless:
        ids = ", ".join(list(dict.fromkeys(trajectory.scenario_id for trajectory in aimless))[:3])
        reasons.append(
            f"{len(aimless)} of {finished} episodes have no reward, because their scenarios ({ids}, …) expect nothing. "
            "Give them `expected`, or use a reward that needs no outcome"
        )
    if waiting:
        parts = sorted({part for trajectory in waiting for part in open_parts[trajectory.place]})
        reasons.append(
            f"{len(waiting)} of {finished} episodes have no reward, because nothing judges {', '.join(parts)} of "
            "their success. Set judge, which judges assertions, or a reward that asks less, such as checks"
        )
    if len(aimless) + len(waiting) == finished:
        raise RewardError("; ".join(reasons))
    for reason in reasons:
        logger.warning("%s", reason)
    counted = {trajectory.place for trajectory in (*aimless, *waiting)}
    return [trajectory for trajectory in unscored if trajectory.place not in counted]


def _unjudged(trajectory: Trajectory) -> tuple[str, ...]:
    return () if trajectory.outcome is None else trajectory.outcome.unjudged


async def _score_group(
    group: Sequence[Trajectory],
    reward: RewardFunction,
    scenarios: Mapping[str, Scenario],
    judge: AssertionJudge | None,
    timeout_s: float,
) -> list[Trajectory]:
    group = [_without_score(trajectory) for trajectory in group]
    if judge is not None:
        group = await asyncio.gather(*(judge.complete_outcome(t, scenarios.get(t.scenario_id)) for t in group))
    finished = [trajectory for trajectory in group if trajectory.stop != "failed"]
    if not finished:
        return list(group)
    scenario = scenarios.get(finished[0].scenario_id)
    copies = None if scenario is None else ScenarioCopies(scenario)
    episodes = [Episode.of(trajectory, copies) for trajectory in finished]
    results: list[RewardResult | Unscored]
    with errors_at(f"scenario {finished[0].scenario_id}"):
        try:
            results = await _computed(reward, episodes, timeout_s)
        except Unscored as reason:
            results = [reason] * len(finished)
        remaining = iter(checked_results(results, episodes, reward.name))
    return [trajectory if trajectory.stop == "failed" else _scored(trajectory, next(remaining)) for trajectory in group]


async def _computed(
    reward: RewardFunction, episodes: Sequence[Episode], timeout_s: float
) -> list[RewardResult | Unscored]:
    """Results of a group. Raises `RewardError` if the reward waits for longer than its time.

    Rewards of other groups that block the event loop make the time pass too. Their groups have been computed when the
    loop runs again, but the loop notices the time first.
    """

    async def compute() -> list[RewardResult | Unscored]:
        with reward_code(reward.name):
            return list(await reward.compute_group(episodes))

    work = asyncio.create_task(compute())
    try:
        await asyncio.wait({work}, timeout=timeout_s + _MARGIN_S)
        for _ in range(_LATE_STEPS):
            if not work.done():
                await asyncio.sleep(0)
        if work.done():
            return work.result()
    finally:
        work.cancel()
    raise RewardError(
        f"reward {reward.name} took longer than {timeout_s:g} s ({_SETTING}). Correct it, or raise the setting"
    )


async def _renew(limit: interrupts.time_limit) -> None:
    """Show that the event loop is not blocked."""
    while True:
        limit.renew()
        await asyncio.sleep(min(1.0, limit.seconds / 4))


def _without_score(trajectory: Trajectory) -> Trajectory:
    """The episode as it was before anything scored it. A failed one keeps the reason of its failure."""
    if trajectory.stop == "failed":
        return trajectory
    return replace(trajectory, terminal_reward=None, breakdown={}, error=None)


def _scored(trajectory: Trajectory, result: RewardResult | Unscored) -> Trajectory:
    if isinstance(result, Unscored):
        return replace(trajectory, error=f"unscored: {result}")
    try:
        encode(dict(result.metadata))
    except NotStrictJSON as error:
        return replace(trajectory, error=f"unscored: the metadata of its reward is {error}")
    return replace(
        trajectory,
        turn_rewards=_with_turn_scores(trajectory, result),
        terminal_reward=result.score - math.fsum(result.turn_scores),
        breakdown=dict(result.breakdown),
        reward_metadata={**trajectory.reward_metadata, **result.metadata},
    )


def _with_turn_scores(trajectory: Trajectory, result: RewardResult) -> tuple[float, ...]:
    """Rewards of the turns: the environment's, which gives none for a last turn that was cut off, and the reward's.

    environment .1, reward [.5 .25]   →  .6 .25
    """
    pairs = zip_longest(trajectory.turn_rewards, result.turn_scores, fillvalue=0.0)
    return tuple(given + added for given, added in pairs)
