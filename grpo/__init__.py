"""Multi-turn conversational agents, trained with Group Relative Policy Optimization.

`from grpo import MultiTurnAgent, train`: public names for notebooks, whose modules are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo.agents.conversations import ConversationManager
    from grpo.agents.domain import CustomerServiceAgent
    from grpo.agents.memory import ConversationMemory
    from grpo.agents.multi_turn import MultiTurnAgent
    from grpo.agents.tool_agent import ToolAgent
    from grpo.agents.tools import ToolError
    from grpo.config.agent import AgentConfig
    from grpo.config.search_space import get_search_space
    from grpo.config.tuning import HPOConfig
    from grpo.environments.conversation import ConversationEnvironment
    from grpo.environments.environment import Environment, EnvironmentState, StepResult
    from grpo.environments.presets import CONVERSATION_CONFIGS
    from grpo.environments.task import TaskEnvironment
    from grpo.messages import Message, ToolCall
    from grpo.notebook.auto import AutoTrainer
    from grpo.notebook.callbacks import CheckpointCallback, EarlyStoppingCallback
    from grpo.notebook.config import TrainingConfig, TrainingProfile, get_config_for_task
    from grpo.notebook.diagnostics import DiagnosticsMonitor
    from grpo.notebook.engine import ComputationalGRPOEngine
    from grpo.notebook.trainer import MultiTurnGRPOTrainer, SingleTurnGRPOTrainer, train
    from grpo.notebook.tune import quick_hpo
    from grpo.renderers.chat_template import Renderer
    from grpo.rewards.composite import CompositeReward, MultiObjectiveReward
    from grpo.rewards.learned.safety import SafetyReward
    from grpo.rewards.presets import create_customer_service_reward, create_domain_reward
    from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult, reward_function
    from grpo.rewards.task import TaskCompletionReward
    from grpo.rewards.text.lexical import ConcisenessReward
    from grpo.rewards.text.quality import EngagementReward, HelpfulnessReward
    from grpo.scenarios.scenario import Scenario
    from grpo.trajectories import Outcome

_NAMES = {
    "grpo.agents.conversations": ("ConversationManager",),
    "grpo.agents.domain": ("CustomerServiceAgent",),
    "grpo.agents.memory": ("ConversationMemory",),
    "grpo.agents.multi_turn": ("MultiTurnAgent",),
    "grpo.agents.tool_agent": ("ToolAgent",),
    "grpo.agents.tools": ("ToolError",),
    "grpo.notebook.auto": ("AutoTrainer",),
    "grpo.notebook.callbacks": ("CheckpointCallback", "EarlyStoppingCallback"),
    "grpo.messages": ("Message", "ToolCall"),
    "grpo.config.agent": ("AgentConfig",),
    "grpo.notebook.config": ("TrainingConfig", "TrainingProfile", "get_config_for_task"),
    "grpo.config.search_space": ("get_search_space",),
    "grpo.config.tuning": ("HPOConfig",),
    "grpo.notebook.diagnostics": ("DiagnosticsMonitor",),
    "grpo.notebook.engine": ("ComputationalGRPOEngine",),
    "grpo.environments.conversation": ("ConversationEnvironment",),
    "grpo.environments.environment": ("Environment", "EnvironmentState", "StepResult"),
    "grpo.environments.presets": ("CONVERSATION_CONFIGS",),
    "grpo.environments.task": ("TaskEnvironment",),
    "grpo.rewards.composite": ("CompositeReward", "MultiObjectiveReward"),
    "grpo.rewards.presets": ("create_customer_service_reward", "create_domain_reward"),
    "grpo.rewards.text.quality": ("EngagementReward", "HelpfulnessReward"),
    "grpo.rewards.reward": ("RewardContext", "RewardFunction", "RewardResult", "reward_function"),
    "grpo.rewards.learned.safety": ("SafetyReward",),
    "grpo.rewards.task": ("TaskCompletionReward",),
    "grpo.rewards.text.lexical": ("ConcisenessReward",),
    "grpo.scenarios.scenario": ("Scenario",),
    "grpo.renderers.chat_template": ("Renderer",),
    "grpo.trajectories": ("Outcome",),
    "grpo.notebook.trainer": ("MultiTurnGRPOTrainer", "SingleTurnGRPOTrainer", "train"),
    "grpo.notebook.tune": ("quick_hpo",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = (*_HOME,)


def __getattr__(name: str) -> Any:
    """Import the module of a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'grpo' has no {name!r}")
    return getattr(import_module(_HOME[name]), name)
