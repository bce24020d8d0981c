"""Rewards: verified by the environment, on the text of replies, learned, or given by an LLM judge."""

from grpo.rewards.composite import CompositeReward, MultiObjectiveReward, pareto_front
from grpo.rewards.presets import create_customer_service_reward, create_domain_reward
from grpo.rewards.reward import FunctionReward, RewardContext, RewardFunction, RewardResult, reward_function
from grpo.rewards.task import ChecksReward, ConstantReward, TaskCompletionReward, ValidCallsReward
from grpo.rewards.text.correctness import CorrectnessReward, SimilarityReward
from grpo.rewards.text.lexical import ConcisenessReward, KeywordReward, SimilarityAwareReward, VarietyReward
from grpo.rewards.text.quality import (
    ActionReward,
    CreativeWritingReward,
    CustomerServiceReward,
    EducationReward,
    EmpathyReward,
    EngagementReward,
    HelpfulnessReward,
    ProfessionalismReward,
    QualityReward,
    SalesAssistantReward,
    TechnicalSupportReward,
)

__all__ = [
    "ActionReward",
    "ChecksReward",
    "CompositeReward",
    "ConcisenessReward",
    "ConstantReward",
    "CorrectnessReward",
    "CreativeWritingReward",
    "CustomerServiceReward",
    "EducationReward",
    "EmpathyReward",
    "EngagementReward",
    "FunctionReward",
    "HelpfulnessReward",
    "KeywordReward",
    "MultiObjectiveReward",
    "ProfessionalismReward",
    "QualityReward",
    "RewardContext",
    "RewardFunction",
    "RewardResult",
    "SalesAssistantReward",
    "SimilarityAwareReward",
    "SimilarityReward",
    "TaskCompletionReward",
    "TechnicalSupportReward",
    "ValidCallsReward",
    "VarietyReward",
    "create_customer_service_reward",
    "create_domain_reward",
    "pareto_front",
    "reward_function",
]
