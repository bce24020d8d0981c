"""Whether what the agent said is true, by what the scenario expects."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from grpo.errors import Unscored
from grpo.messages import Message
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.rewards.text.answers import parse_quantity
from grpo.rewards.text.fluency import prose
from grpo.rewards.text.language import content
from grpo.rewards.text.quality import fact_recall
from grpo.rewards.text.reply import agent_replies


class CorrectnessReward(RewardFunction):
    """Share of the scenario's expected facts that the agent told; denied, or with other numbers, a fact is not told.

    A fact that is a number ("72", "$1,200.00") is compared with what a reply ends with. Words that are no prose tell
    nothing; where only numbers are expected, no grammar is. Raises `Unscored` where nothing is expected.
    """

    name = "correctness"

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """See the class."""
        facts = context.scenario.expected.facts if context.scenario is not None else ()
        if not facts:
            raise Unscored("nothing is expected; give the scenario expected.facts")
        found = agent_replies(turns, context)
        told = fact_recall(facts, turns)
        parts = (
            "words",
            "variety",
            "script",
            *(() if all(parse_quantity(fact) is not None for fact in facts) else ("grammar",)),
        )
        sound = fmean(min(prose(exchange)[part] for part in parts) for exchange in found) if found else 0.0
        return RewardResult(score=told * sound, breakdown={"facts": told, "prose": sound})


class SimilarityReward(RewardFunction):
    """How close each reply comes to the nearest reply that the scenario expects: the overlap of their content words.

    Dice: 2 · common / (own + expected). Raises `Unscored` where no reply is expected and none was given.
    """

    name = "similarity"

    def __init__(self, *, weight: float = 1.0, expected: Sequence[str] = ()) -> None:
        super().__init__(weight=weight)
        self.expected = tuple(expected)

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """See the class."""
        expected = (*self.expected, *(context.scenario.expected.responses if context.scenario is not None else ()))
        if not expected:
            raise Unscored("no reply is expected; give the scenario expected.responses, or the reward expected")
        scores = [
            min(prose(exchange).values()) * max(_dice(exchange.reply, reference) for reference in expected)
            for exchange in agent_replies(turns, context)
        ]
        return RewardResult(score=fmean(scores) if scores else 0.0)


def _dice(text: str, other: str) -> float:
    one, two = content(text), content(other)
    return 2 * len(one & two) / max(1, len(one) + len(two))
