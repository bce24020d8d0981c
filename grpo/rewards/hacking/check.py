"""Reward hacking check: it compares scores of degenerate and honest replies before a reward may train."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from grpo.config.rewards import RewardComponent
from grpo.errors import ConfigError, RewardError, Unscored
from grpo.messages import Message
from grpo.rewards.catalog import make_reward
from grpo.rewards.hacking.probes import CASES, PROBES, Probe, ProbeCase
from grpo.rewards.reward import (
    Episode,
    RewardContext,
    RewardFunction,
    RewardResult,
    checked_results,
    errors_at,
    reward_code,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Mean scores over the cases: the probe's best wording, and the honest replies."""

    probe: Probe
    score: float | None
    """None if the reward could score none of the replies. Such a probe earns nothing."""
    honest: float

    @property
    def exploited(self) -> bool:
        """The probe scores more than its share of the honest score."""
        return self.score is not None and self.score > self.probe.max_share * self.honest + 1e-9


def probe_reward(reward: RewardFunction) -> list[ProbeResult]:
    """Score every probe.

    Raises `RewardError` for a reward that is not probed, and for one that gives honest replies nothing.
    """
    if not reward.probed:
        raise RewardError(
            f"reward {reward.name} is not probed: `probed` is False for controls, verified outcomes, judges that "
            "cost, and rewards that do not score replies"
        )
    with asyncio.Runner() as runner:
        replies = [case.honest for case in CASES]
        honest = runner.run(_mean(reward, replies))
        if honest is None or honest <= 0:
            raise RewardError(
                f"reward {reward.name} gives honest replies {'no score' if honest is None else honest}, so that probes "
                "cannot be compared with them. Set probed = False on its class or function if it does not score replies"
            )
        return [ProbeResult(probe=probe, score=runner.run(_best(reward, probe)), honest=honest) for probe in PROBES]


def check_rewards(components: Sequence[RewardComponent]) -> None:
    """Raise `ConfigError` when a probe exploits one of these rewards and the config does not accept it by name."""
    names = [probe.name for probe in PROBES]
    for component in components:
        if unknown := {*component.accepted_exploits} - {*names}:
            raise ConfigError(f"reward {component.kind}: accepted_exploits names {sorted(unknown)}. Probes are {names}")
        reward = make_reward(component)
        if not reward.probed:
            continue
        accepted = component.accepted_exploits
        exploited = [
            result for result in probe_reward(reward) if result.exploited and result.probe.name not in accepted
        ]
        if exploited:
            scores = ", ".join(
                f"{result.probe.name} ({result.score:.2f}, honest {result.honest:.2f})" for result in exploited
            )
            needed = ", ".join((*accepted, *(result.probe.name for result in exploited)))
            raise ConfigError(
                f"reward {component.kind} can be hacked by {scores}. Use another reward, or accept the exploits by "
                f"name: accepted_exploits: [{needed}]"
            )


async def _best(reward: RewardFunction, probe: Probe) -> float | None:
    """Mean score of the wording that scores highest, as a policy would learn that one."""
    wordings = zip(*(probe.replies(case) for case in CASES), strict=True)
    scores = [await _mean(reward, replies) for replies in wordings]
    return max((score for score in scores if score is not None), default=None)


async def _mean(reward: RewardFunction, replies: Sequence[str]) -> float | None:
    episodes = [_episode(case, reply) for case, reply in zip(CASES, replies, strict=True)]
    results = list[RewardResult | Unscored]()
    for episode in episodes:
        try:
            with errors_at(f"probe of scenario {episode.context.scenario_id}"), reward_code(reward.name):
                results += checked_results(await reward.compute_group([episode]), [episode], reward.name)
        except Unscored:
            raise
        except RewardError as error:
            raise RewardError(
                f"{error}. A reward that needs more than the probes' scenarios have sets probed = False on its class "
                "or function"
            ) from error
    scores = [result.score for result in results if not isinstance(result, Unscored)]
    return fmean(scores) if scores else None


def _episode(case: ProbeCase, reply: str) -> Episode:
    scenario = case.scenario
    return Episode(
        turns=(Message(role="user", content=case.request), Message(role="assistant", content=reply)),
        context=RewardContext(
            scenario_id=scenario.id, category=scenario.metadata.category, stop="terminated", scenario=scenario
        ),
    )
