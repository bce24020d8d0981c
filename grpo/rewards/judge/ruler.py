"""RULER: an LLM judge scores all samples of a scenario in one call, relative to each other.

Relative scores suffice for a group baseline, and comparing is easier than grading (relative universal LLM-elicited
rewards, OpenPipe 2025).
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
    """Score by an LLM judge that compares the samples of a group by a rubric.

    `options` are the fields of `JudgeSettings`. `rubric` is the name of a shipped rubric, or a rubric written out. One
    call scores a group. If an answer cannot be parsed, it is sent back once. If the second answer cannot be parsed
    either, or if there is no answer, the whole group is `Unscored`, unless a `fallback` reward is given. The fallback
    then scores the group, and the metadata of each result name it. Raises `RewardError` if the judge will never answer,
    because the key is refused or there is no such model.
    """

    name = "ruler"
    probed = False  # each probe would be a paid call; `evaluation.judge_bias` measures the judge on request

    def __init__(
        self,
        *,
        weight: float = 1.0,
        rubric: str | Mapping[str, Any] | Rubric = "customer_service",
        fallback: RewardFunction | None = None,
        **options: Any,
    ) -> None:
        super().__init__(weight=weight)
        try:
            self.settings = JudgeSettings(**options)
        except ValidationError as error:
            lines = describe_errors(error, JudgeSettings, options, secret=True)
            raise ConfigError(f"reward {self.name}: {'; '.join(lines)}") from error
        self.rubric = find_rubric(rubric)
        self.fallback = fallback
        self.judge = Judge(self.settings)

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """Score the group in one call. The judge reads it in an order drawn for the scenario."""
        scenario_id = episodes[0].context.scenario_id
        results = await self.compare(
            episodes, shuffled_order(len(episodes), seed=self.settings.seed, scenario_id=scenario_id)
        )
        reasons = [result for result in results if isinstance(result, Unscored)]
        if self.fallback is None or not reasons:
            return results
        logger.warning("scenario %s is scored by %s, because %s", scenario_id, self.fallback.name, reasons[0])
        scored = await self.fallback.compute_group(episodes)
        return [_by_fallback(result, reasons[0], self.fallback.name) for result in scored]

    async def compare(self, episodes: Sequence[Episode], order: Sequence[int]) -> list[RewardResult | Unscored]:
        """Scores in the order of `episodes`. The judge reads episode `order[p]` at place p."""
        prompt = JudgePrompt.of(
            episodes, order, self.rubric, seed=self.settings.seed, max_chars=self.settings.max_chars
        )
        try:
            verdicts = await self.judge.verdicts(
                prompt.messages,
                prompt.labels,
                rubric=self.rubric.hash,
                scenario_id=episodes[0].context.scenario_id,
            )
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
                    "cut_chars": prompt.cut[index],
                    "shared_cut_chars": prompt.shared_cut,
                },
            )
            for index, label in enumerate(prompt.labels)
        ]


def create_customer_service_ruler(
    model: str, *, weight: float = 0.6, fallback: RewardFunction | None = None, **options: Any
) -> RulerReward:
    """RULER with the customer service rubric, as a component of a composite. For `model` see `JudgeSettings`."""
    return RulerReward(weight=weight, rubric="customer_service", fallback=fallback, model=model, **options)


def _by_fallback(result: RewardResult | Unscored, reason: Unscored, name: str) -> RewardResult | Unscored:
    """Result of the fallback reward of this name, labelled as such."""
    if isinstance(result, Unscored):
        return Unscored(f"{reason}, and {name}: {result}")
    metadata = {**result.metadata, "judge": f"fallback {name}", "reason": str(reason)}
    return RewardResult(score=result.score, breakdown=result.breakdown, metadata=metadata)
