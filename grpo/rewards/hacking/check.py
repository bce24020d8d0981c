"""Admission: before a reward may train, it is tried on replies that deserve little."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from grpo.config.rewards import RewardComponent
from grpo.errors import ConfigError, RewardError, Unscored
from grpo.messages import Message
from grpo.rewards.catalog import reward_named
from grpo.rewards.hacking.probes import CASES, PROBES, Probe, ProbeCase
from grpo.rewards.reward import Episode, RewardContext, RewardFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Scores of a probe and of the honest replies: means over the cases, of a probe's wordings the best one."""

    probe: Probe
    score: float | None
    """None where the reward could judge none of them; then nothing is earned."""
    honest: float

    @property
    def exploited(self) -> bool:
        """Whether the probe earned more than it may."""
        return self.score is not None and self.score > self.probe.max_share * self.honest + 1e-9


def probe_reward(reward: RewardFunction) -> list[ProbeResult]:
    """Try a reward on every probe.

    Raises `RewardError` for a reward that is not probed, and for one that gives honest replies nothing.
    """
    if not reward.probed:
        raise RewardError(
            f"reward {reward.name} is a control, a verified outcome, or a judge that costs; there is nothing to probe"
        )
    with asyncio.Runner() as runner:
        replies = [case.honest for case in CASES]
        honest = runner.run(_mean(reward, replies))
        if honest is None or honest <= 0:
            raise RewardError(
                f"reward {reward.name} gives honest replies {'no score' if honest is None else honest}, so that probes "
                "cannot be compared with them; set probed = False in its class if it does not judge replies"
            )
        return [ProbeResult(probe=probe, score=runner.run(_best(reward, probe)), honest=honest) for probe in PROBES]


def check_rewards(components: Sequence[RewardComponent]) -> None:
    """Raise `ConfigError` when a probe fools one of these rewards and the config does not say so by name."""
    names = [probe.name for probe in PROBES]
    for component in components:
        if strangers := {*component.accepted_exploits} - {*names}:
            raise ConfigError(
                f"reward {component.kind}: accepted_exploits names {sorted(strangers)}; probes are {names}"
            )
        reward = reward_named(component.kind, weight=component.weight, **component.options)
        if not reward.probed:
            continue
        exploited = [
            one for one in probe_reward(reward) if one.exploited and one.probe.name not in component.accepted_exploits
        ]
        if exploited:
            found = ", ".join(f"{one.probe.name} ({one.score:.2f}, honest {one.honest:.2f})" for one in exploited)
            raise ConfigError(
                f"reward {component.kind} is fooled by {found}; use another one, or accept it by name: "
                f"accepted_exploits: [{', '.join((*component.accepted_exploits, *(one.probe.name for one in exploited)))}]"
            )


async def _best(reward: RewardFunction, probe: Probe) -> float | None:
    """The mean score of the wording that earns most; a policy would find that one."""
    wordings = zip(*(probe.replies(case) for case in CASES), strict=True)
    scores = [await _mean(reward, replies) for replies in wordings]
    return max((score for score in scores if score is not None), default=None)


async def _mean(reward: RewardFunction, replies: Sequence[str]) -> float | None:
    episodes = [_episode(case, reply) for case, reply in zip(CASES, replies, strict=True)]
    results = [(await reward.compute_group([episode]))[0] for episode in episodes]
    scores = [result.score for result in results if not isinstance(result, Unscored)]
    return fmean(scores) if scores else None


def _episode(case: ProbeCase, reply: str) -> Episode:
    scenario = case.scenario
    return Episode(
        turns=(Message(role="user", content=case.asked), Message(role="assistant", content=reply)),
        context=RewardContext(
            scenario_id=scenario.id, category=scenario.metadata.category, stop="terminated", scenario=scenario
        ),
    )
