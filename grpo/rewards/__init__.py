"""What an episode is worth."""

from grpo.rewards.composite import CompositeReward
from grpo.rewards.function import FunctionReward, reward_function
from grpo.rewards.objectives import MultiObjectiveReward, pareto_front
from grpo.rewards.presets import create_customer_service_reward, create_domain_reward
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.rewards.task import ChecksReward, ConstantReward, TaskCompletionReward, ValidCallsReward
from grpo.rewards.text.correctness import CorrectnessReward, SimilarityReward
from grpo.rewards.text.lexical import ConcisenessReward, KeywordReward, VarietyReward
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
from grpo.rewards.text.similarity import SimilarityAwareReward

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
