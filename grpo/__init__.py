"""Multi-turn conversational agents, trained with Group Relative Policy Optimization.

`from grpo import MultiTurnAgent, train`: the names of a notebook, whose modules are loaded when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo.agents.conversations import ConversationManager
    from grpo.agents.customer_service import CustomerServiceAgent
    from grpo.agents.memory import ConversationMemory
    from grpo.agents.multi_turn import MultiTurnAgent
    from grpo.agents.tool_agent import ToolAgent
    from grpo.auto import AutoTrainer
    from grpo.callbacks import CheckpointCallback, EarlyStoppingCallback
    from grpo.config.agent import AgentConfig
    from grpo.config.notebook import TrainingConfig, TrainingProfile, get_config_for_task
    from grpo.config.spaces import get_search_space
    from grpo.config.tuning import HPOConfig
    from grpo.diagnostics import DiagnosticsMonitor
    from grpo.engine import ComputationalGRPOEngine
    from grpo.environments.conversation import ConversationEnvironment
    from grpo.environments.presets import CONVERSATION_CONFIGS
    from grpo.environments.task import TaskEnvironment
    from grpo.rewards.composite import CompositeReward
    from grpo.rewards.function import reward_function
    from grpo.rewards.objectives import MultiObjectiveReward
    from grpo.rewards.presets import create_customer_service_reward, create_domain_reward
    from grpo.rewards.quality import EngagementReward, HelpfulnessReward
    from grpo.rewards.reward import RewardFunction, RewardResult
    from grpo.rewards.safety import SafetyReward
    from grpo.rewards.task import TaskCompletionReward
    from grpo.rewards.text import ConcisenessReward
    from grpo.scenarios.scenario import Scenario
    from grpo.trainer import MultiTurnGRPOTrainer, SingleTurnGRPOTrainer, train
    from grpo.tuning.quick import quick_hpo

_NAMES = {
    "grpo.agents.conversations": ("ConversationManager",),
    "grpo.agents.customer_service": ("CustomerServiceAgent",),
    "grpo.agents.memory": ("ConversationMemory",),
    "grpo.agents.multi_turn": ("MultiTurnAgent",),
    "grpo.agents.tool_agent": ("ToolAgent",),
    "grpo.auto": ("AutoTrainer",),
    "grpo.callbacks": ("CheckpointCallback", "EarlyStoppingCallback"),
    "grpo.config.agent": ("AgentConfig",),
    "grpo.config.notebook": ("TrainingConfig", "TrainingProfile", "get_config_for_task"),
    "grpo.config.spaces": ("get_search_space",),
    "grpo.config.tuning": ("HPOConfig",),
    "grpo.diagnostics": ("DiagnosticsMonitor",),
    "grpo.engine": ("ComputationalGRPOEngine",),
    "grpo.environments.conversation": ("ConversationEnvironment",),
    "grpo.environments.presets": ("CONVERSATION_CONFIGS",),
    "grpo.environments.task": ("TaskEnvironment",),
    "grpo.rewards.composite": ("CompositeReward",),
    "grpo.rewards.function": ("reward_function",),
    "grpo.rewards.objectives": ("MultiObjectiveReward",),
    "grpo.rewards.presets": ("create_customer_service_reward", "create_domain_reward"),
    "grpo.rewards.quality": ("EngagementReward", "HelpfulnessReward"),
    "grpo.rewards.reward": ("RewardFunction", "RewardResult"),
    "grpo.rewards.safety": ("SafetyReward",),
    "grpo.rewards.task": ("TaskCompletionReward",),
    "grpo.rewards.text": ("ConcisenessReward",),
    "grpo.scenarios.scenario": ("Scenario",),
    "grpo.trainer": ("MultiTurnGRPOTrainer", "SingleTurnGRPOTrainer", "train"),
    "grpo.tuning.quick": ("quick_hpo",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = (*_HOME,)


def __getattr__(name: str) -> Any:
    """Load the module that a public name lives in."""
    if name not in _HOME:
        raise AttributeError(f"module 'grpo' has no {name!r}")
    return getattr(import_module(_HOME[name]), name)
