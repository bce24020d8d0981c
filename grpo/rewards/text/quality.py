"""Rewards on how well the agent replies: parts in fixed shares, on prose only."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

from grpo.messages import Message
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.rewards.text.facts import fact_score
from grpo.rewards.text.features import PARTS
from grpo.rewards.text.fluency import prose
from grpo.rewards.text.reply import AgentReply, agent_replies


class QualityReward(RewardFunction):
    """Mean over replies of  least part of prose · gates · Σ share · part,  and of that by the facts that were told.

    A gate is a part that nothing else makes up for. Where the scenario names expected facts, a third of the score
    stays to a conversation that tells none of them. The breakdown has every part, as a mean over replies.
    """

    shares: ClassVar[dict[str, float]]
    """Parts and what they count for; they add up to 1."""
    gates: ClassVar[tuple[str, ...]] = ("entities", "fresh", "professional")

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """0 for a conversation without a reply."""
        judged = [self._judge(exchange) for exchange in agent_replies(turns, context)]
        if not judged:
            return RewardResult(score=0.0)
        score = fmean(score for score, _ in judged)
        breakdown = {name: fmean(parts[name] for _, parts in judged) for name in judged[0][1]}
        facts = context.scenario.expected.facts if context.scenario is not None else ()
        if facts:
            breakdown["facts"] = fact_recall(facts, turns)
            score *= (1 + 2 * breakdown["facts"]) / 3
        return RewardResult(score=score, breakdown=breakdown)

    def _judge(self, exchange: AgentReply) -> tuple[float, dict[str, float]]:
        found = prose(exchange)
        sound = min(found.values())
        parts = {name: PARTS[name](exchange) for name in (*self.shares, *self.gates)}
        score = sound * sum(share * parts[name] for name, share in self.shares.items())
        for gate in self.gates:
            score *= parts[gate]
        return score, {**parts, "prose": sound}


def fact_recall(facts: Sequence[str], turns: Sequence[Message]) -> float:
    """Mean over facts of how well the best reply tells it."""
    replies = [turn.content for turn in turns if turn.role == "assistant" and not turn.tool_calls]
    return fmean(max((fact_score(fact, reply) for reply in replies), default=0.0) for fact in facts)


class HelpfulnessReward(QualityReward):
    """Takes up what the customer needs, gives what was asked for, says something new, and speaks to them."""

    name = "helpfulness"
    shares: ClassVar = {"need": 0.3, "answer": 0.35, "substance": 0.25, "addresses": 0.1}


class EngagementReward(QualityReward):
    """Speaks to the customer about their matter and keeps the conversation open, without shouting."""

    name = "engagement"
    shares: ClassVar = {"need": 0.4, "invites": 0.25, "addresses": 0.15, "substance": 0.2}


class CustomerServiceReward(QualityReward):
    """Understands the trouble, answers, and does something about it, politely."""

    name = "customer_service"
    shares: ClassVar = {
        "need": 0.2, "answer": 0.2, "action": 0.2, "empathy": 0.15, "substance": 0.15, "addresses": 0.1,
    }  # fmt: skip


class TechnicalSupportReward(QualityReward):
    """Tells what to do about the fault, step by step."""

    name = "technical_support"
    shares: ClassVar = {"need": 0.2, "answer": 0.2, "steps": 0.35, "substance": 0.25}


class SalesAssistantReward(QualityReward):
    """Matches a product to what the customer looks for, with its details, and without pressure."""

    name = "sales"
    shares: ClassVar = {"need": 0.25, "answer": 0.2, "offer": 0.3, "substance": 0.15, "invites": 0.1}
    gates: ClassVar = ("entities", "fresh", "professional", "unhurried")


class EducationReward(QualityReward):
    """Explains how things hang together, and takes the learner along."""

    name = "education"
    shares: ClassVar = {"need": 0.25, "explains": 0.3, "encourages": 0.15, "substance": 0.2, "answer": 0.1}


class CreativeWritingReward(QualityReward):
    """Writes on what was asked for, with many different words."""

    name = "creative_writing"
    shares: ClassVar = {"need": 0.4, "substance": 0.2, "imagery": 0.4}


class EmpathyReward(QualityReward):
    """Acknowledges trouble where the customer has some, in a reply to the matter."""

    name = "empathy"
    shares: ClassVar = {"empathy": 0.8, "need": 0.2}


class ActionReward(QualityReward):
    """Does something about the matter, or says what to do."""

    name = "action"
    shares: ClassVar = {"action": 0.8, "need": 0.2}


class ProfessionalismReward(QualityReward):
    """Neither rude nor slangy nor shouting, in a reply to the matter."""

    name = "professionalism"
    shares: ClassVar = {"professional": 0.8, "need": 0.2}
