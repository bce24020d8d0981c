"""RULER: a language model judges all siblings of a scenario at once, relative to each other.

Comparing is easier than grading: scores of one call share one yardstick, and a group baseline needs no more than that
(relative universal LLM-elicited rewards, OpenPipe 2025).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from grpo.config.loading import describe_errors
from grpo.config.rewards import JudgeSettings
from grpo.errors import ConfigError, Unscored
from grpo.rewards.judge.judge import Judge
from grpo.rewards.judge.prompt import JudgePrompt, shuffled_order
from grpo.rewards.judge.rubrics import Rubric, find_rubric
from grpo.rewards.reward import Episode, GroupReward, RewardFunction, RewardResult

logger = logging.getLogger(__name__)


class RulerReward(GroupReward):
    """The score that a judge gives a conversation beside its siblings, by a rubric.

    `options` are the fields of `JudgeSettings`; `rubric` is the name of one that ships, or one's own. One call judges
    a group. An answer that cannot be read to the letter is sent back once; then, as when there is none, no sibling has
    a score: `Unscored`. Only if `fallback` names another reward, that one scores them instead, and the metadata of
    each result says so. Raises `RewardError` where the judge will never answer: key refused, no such model.
    """

    name = "ruler"
    probed = False  # each probe would be a question that costs; `evaluation.bias` asks them when it is told to

    def __init__(
        self,
        *,
        weight: float = 1.0,
        rubric: str | Mapping[str, Any] | Rubric = "customer_service",
        fallback: str | RewardFunction | None = None,
        **options: Any,
    ) -> None:
        super().__init__(weight=weight)
        try:
            self.settings = JudgeSettings(**options)
        except ValidationError as error:
            raise ConfigError(
                f"reward {self.name}: {'; '.join(describe_errors(error, options, secret=True))}"
            ) from error
        self.rubric = find_rubric(rubric)
        self.fallback = _reward_of(fallback) if isinstance(fallback, str) else fallback
        self.judge = Judge(self.settings)

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """See the class; the judge reads the siblings in an order drawn for their scenario."""
        scenario_id = episodes[0].context.scenario_id
        results = await self.compare(
            episodes, shuffled_order(len(episodes), seed=self.settings.seed, scenario_id=scenario_id)
        )
        reasons = [result for result in results if isinstance(result, Unscored)]
        if self.fallback is None or not reasons:
            return results
        logger.warning("scenario %s: %s; scored by %s instead", scenario_id, reasons[0], self.fallback.name)
        scored = await self.fallback.compute_group(episodes)
        return [_stand_in(result, reasons[0], self.fallback.name) for result in scored]

    async def compare(self, episodes: Sequence[Episode], order: Sequence[int]) -> list[RewardResult | Unscored]:
        """Scores of the siblings, in their order, when the judge reads episode `order[p]` at place p."""
        comparison = JudgePrompt.of(
            episodes, order, self.rubric, seed=self.settings.seed, max_chars=self.settings.max_chars
        )
        try:
            verdicts = await self.judge.verdicts(comparison.messages, comparison.labels, rubric=self.rubric.hash)
        except Unscored as reason:
            return [reason] * len(episodes)
        return [
            RewardResult(
                score=verdicts[label].score,
                metadata={
                    "judge": self.judge.address,
                    "rubric": f"{self.rubric.name}@{self.rubric.version}",
                    "rubric_hash": self.rubric.hash,
                    "criteria": self.rubric.weights,
                    "label": label,
                    "place": list(order).index(index),
                    "reason": verdicts[label].reason,
                    "cut_chars": comparison.cut[index],
                    "shared_cut_chars": comparison.shared_cut,
                },
            )
            for index, label in enumerate(comparison.labels)
        ]


def create_customer_service_ruler(
    model: str, *, weight: float = 0.6, fallback: str | RewardFunction | None = None, **options: Any
) -> RulerReward:
    """The judge of customer service, as a part of a composite; `model` is an address, see `JudgeSettings`."""
    return RulerReward(weight=weight, rubric="customer_service", fallback=fallback, model=model, **options)


def _reward_of(name: str) -> RewardFunction:
    from grpo.rewards.catalog import REWARDS  # which holds the judge itself

    if name not in REWARDS or name == RulerReward.name:
        others = ", ".join(other for other in REWARDS if other != RulerReward.name)
        raise ConfigError(f"fallback {name!r} of reward {RulerReward.name} is no other reward; use one of {others}")
    try:
        return REWARDS[name]()
    except TypeError as error:
        raise ConfigError(f"fallback {name!r} of reward {RulerReward.name} needs options: {error}") from error


def _stand_in(result: RewardResult | Unscored, reason: Unscored, name: str) -> RewardResult | Unscored:
    """What the fallback of this name says, labelled as such."""
    if isinstance(result, Unscored):
        return Unscored(f"{reason}; and {name}: {result}")
    metadata = {**result.metadata, "judge": f"fallback {name}", "reason": str(reason)}
    return RewardResult(score=result.score, breakdown=result.breakdown, metadata=metadata)
