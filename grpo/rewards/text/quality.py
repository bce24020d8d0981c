"""Rewards on the quality of replies: text features in fixed shares, times the fluency of the reply."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

from grpo.messages import Message
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.rewards.text.facts import fact_score
from grpo.rewards.text.features import FEATURES
from grpo.rewards.text.fluency import fluency
from grpo.rewards.text.reply import AgentReply, agent_replies, reply_texts


class QualityReward(RewardFunction):
    """Mean over replies of  fluency · ∏ gates · Σ share · feature,  scaled by the recall of expected facts.

    A gate is a feature that multiplies the score. If the scenario names expected facts, a third of the score is
    left to a conversation that states none of them. The breakdown has every feature, as a mean over replies.
    """

    shares: ClassVar[dict[str, float]]
    """Weights of features. They add up to 1."""
    gates: ClassVar[tuple[str, ...]] = ("identifiers", "novelty", "professional")

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Mean over replies, or 0 if the conversation has none."""
        scored = [self._score(reply) for reply in agent_replies(turns, context)]
        if not scored:
            return RewardResult(score=0.0)
        score = fmean(score for score, _ in scored)
        breakdown = {name: fmean(features[name] for _, features in scored) for name in scored[0][1]}
        facts = context.scenario.expected.facts if context.scenario is not None else ()
        if facts:
            breakdown["facts"] = fact_recall(facts, turns)
            score *= (1 + 2 * breakdown["facts"]) / 3
        return RewardResult(score=score, breakdown=breakdown)

    def _score(self, reply: AgentReply) -> tuple[float, dict[str, float]]:
        fluent = min(fluency(reply).values())
        features = {name: FEATURES[name](reply) for name in (*self.shares, *self.gates)}
        score = fluent * sum(share * features[name] for name, share in self.shares.items())
        for gate in self.gates:
            score *= features[gate]
        return score, {**features, "fluency": fluent}


def fact_recall(facts: Sequence[str], turns: Sequence[Message]) -> float:
    """Mean over facts of the best reply's `fact_score`."""
    replies = reply_texts(turns)
    return fmean(max((fact_score(fact, reply) for reply in replies), default=0.0) for fact in facts)


class HelpfulnessReward(QualityReward):
    """Relevant to the request, answers the question, adds information, addresses the user."""

    name = "helpfulness"
    shares: ClassVar = {"relevance": 0.3, "answer": 0.35, "information": 0.25, "second_person": 0.1}


class EngagementReward(QualityReward):
    """Relevant, addresses the user, and keeps the conversation open, without excess punctuation."""

    name = "engagement"
    shares: ClassVar = {"relevance": 0.4, "invitation": 0.25, "second_person": 0.15, "information": 0.2}


class CustomerServiceReward(QualityReward):
    """Acknowledges the trouble, answers, and acts on it, politely."""

    name = "customer_service"
    shares: ClassVar = {
        "relevance": 0.2, "answer": 0.2, "action": 0.2, "empathy": 0.15, "information": 0.15, "second_person": 0.1,
    }  # fmt: skip


class TechnicalSupportReward(QualityReward):
    """Gives instructions for the fault, step by step."""

    name = "technical_support"
    shares: ClassVar = {"relevance": 0.2, "answer": 0.2, "steps": 0.35, "information": 0.25}


class SalesAssistantReward(QualityReward):
    """Matches a product to the request, with its details, and without pressure."""

    name = "sales"
    shares: ClassVar = {
        "relevance": 0.25, "answer": 0.2, "product_details": 0.3, "information": 0.15, "invitation": 0.1,
    }  # fmt: skip
    gates: ClassVar = ("identifiers", "novelty", "professional", "no_pressure")


class EducationReward(QualityReward):
    """Explains connections and encourages the learner."""

    name = "education"
    shares: ClassVar = {
        "relevance": 0.25, "explanation": 0.3, "encouragement": 0.15, "information": 0.2, "answer": 0.1,
    }  # fmt: skip


class CreativeWritingReward(QualityReward):
    """Writes on the requested subject with a rich vocabulary."""

    name = "creative_writing"
    shares: ClassVar = {"relevance": 0.4, "information": 0.2, "vocabulary": 0.4}


class EmpathyReward(QualityReward):
    """Acknowledges the user's trouble in a relevant reply."""

    name = "empathy"
    shares: ClassVar = {"empathy": 0.8, "relevance": 0.2}


class ActionReward(QualityReward):
    """Takes an action, or gives an instruction, in a relevant reply."""

    name = "action"
    shares: ClassVar = {"action": 0.8, "relevance": 0.2}


class ProfessionalismReward(QualityReward):
    """Polite, without slang or shouting, in a relevant reply."""

    name = "professionalism"
    shares: ClassVar = {"professional": 0.8, "relevance": 0.2}
