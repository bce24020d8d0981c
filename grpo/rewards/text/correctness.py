"""Rewards against the scenario's expectations: expected facts, and expected replies."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from grpo.errors import Unscored
from grpo.messages import Message
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.rewards.text.answers import parse_quantity
from grpo.rewards.text.fluency import fluency
from grpo.rewards.text.language import content
from grpo.rewards.text.quality import fact_recall
from grpo.rewards.text.reply import agent_replies


class CorrectnessReward(RewardFunction):
    """Share of the scenario's expected facts that the agent states, times the fluency of its replies.

    A denied fact, or one with other numbers, does not count. A fact that is a number ("72", "$1,200.00") is compared
    with the final answer of a reply. If all facts are numbers, grammar is not checked.
    """

    name = "correctness"

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Fact recall times fluency. Raises `Unscored` for a scenario without expected facts."""
        facts = context.scenario.expected.facts if context.scenario is not None else ()
        if not facts:
            raise Unscored("nothing is expected. Give the scenario expected.facts")
        replies = agent_replies(turns, context)
        recall = fact_recall(facts, turns)
        numeric = all(parse_quantity(fact) is not None for fact in facts)
        checks = ("words", "variety", "script", *(() if numeric else ("grammar",)))
        fluent = fmean(min(fluency(reply)[check] for check in checks) for reply in replies) if replies else 0.0
        return RewardResult(score=recall * fluent, breakdown={"facts": recall, "fluency": fluent})


class SimilarityReward(RewardFunction):
    """Content-word overlap (Dice) of each reply with the nearest expected reply: 2 · common / (own + expected)."""

    name = "similarity"

    def __init__(self, *, weight: float = 1.0, expected: Sequence[str] = ()) -> None:
        super().__init__(weight=weight)
        self.expected = tuple(expected)

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Mean over replies. Raises `Unscored` without an expected reply in the scenario or in `expected`."""
        expected = (*self.expected, *(context.scenario.expected.responses if context.scenario is not None else ()))
        if not expected:
            raise Unscored("no reply is expected. Give the scenario expected.responses, or the reward expected")
        scores = [
            min(fluency(reply).values()) * max(_dice(reply.text, reference) for reference in expected)
            for reply in agent_replies(turns, context)
        ]
        return RewardResult(score=fmean(scores) if scores else 0.0)


def _dice(text: str, other: str) -> float:
    a, b = content(text), content(other)
    return 2 * len(a & b) / max(1, len(a) + len(b))
