"""Multi-turn conversational agents, trained with Group Relative Policy Optimization.

`from grpo import MultiTurnAgent, train`: public names for notebooks. Their modules are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from grpo.errors import DISTRIBUTION

if TYPE_CHECKING:
    from grpo.agents.agent import Agent
    from grpo.agents.conversations import ConversationManager
    from grpo.agents.domain import CustomerServiceAgent, DomainAgent
    from grpo.agents.memory import ConversationMemory
    from grpo.agents.multi_turn import MultiTurnAgent, create_agent, create_stub_agent
    from grpo.agents.tool_agent import ToolAgent
    from grpo.agents.tools import ToolError
    from grpo.config.agent import AgentConfig
    from grpo.config.search_space import get_search_space
    from grpo.config.training import CriticSettings, LoraSettings, TrustRegionSettings
    from grpo.config.tuning import HPOConfig
    from grpo.environments.conversation import ConversationEnvironment
    from grpo.environments.environment import Environment, EnvironmentState, SingleTurnEnvironment, StepResult
    from grpo.environments.gym import GymEnvironment
    from grpo.environments.presets import CONVERSATION_CONFIGS
    from grpo.environments.simulator import SimulatedEnvironment, Simulator
    from grpo.environments.task import TaskEnvironment
    from grpo.environments.tool_calling import ToolCallingEnvironment
    from grpo.environments.trl import TRLEnvironment
    from grpo.errors import (
        ConfigError,
        DataError,
        GRPOError,
        NoEffect,
        NoLearningSignal,
        NotApplicable,
        PolicyError,
        Unscored,
    )
    from grpo.evaluation.evidence import Evidence
    from grpo.evaluation.schema import GateCheck
    from grpo.messages import Message, Tool, ToolCall
    from grpo.notebook.adjuster import Adjuster
    from grpo.notebook.auto import AutoTrainer
    from grpo.notebook.callbacks import Callback, CheckpointCallback, EarlyStoppingCallback, TrainingControl
    from grpo.notebook.config import TrainingConfig, TrainingProfile, get_config_for_task
    from grpo.notebook.diagnostics import DiagnosticsMonitor, IterationRecord
    from grpo.notebook.engine import ComputationalGRPOEngine
    from grpo.notebook.trainer import MultiTurnGRPOTrainer, SingleTurnGRPOTrainer, train
    from grpo.notebook.tune import quick_hpo
    from grpo.policy.catalog import open_policy
    from grpo.policy.policy import Generation, Policy, Prompt, Sampler, Sampling, Session
    from grpo.policy.scripted import ScriptedPolicy
    from grpo.renderers.chat_template import Renderer
    from grpo.rewards.composite import CompositeReward, MultiObjectiveReward
    from grpo.rewards.learned.safety import SafetyReward
    from grpo.rewards.presets import create_customer_service_reward, create_domain_reward
    from grpo.rewards.reward import Episode, GroupReward, RewardContext, RewardFunction, RewardResult, reward_function
    from grpo.rewards.task import ChecksReward, EnvironmentReward, TaskCompletionReward
    from grpo.rewards.text.correctness import CorrectnessReward
    from grpo.rewards.text.lexical import ConcisenessReward, SimilarityAwareReward
    from grpo.rewards.text.quality import (
        CustomerServiceReward,
        EngagementReward,
        HelpfulnessReward,
        QualityReward,
        SalesAssistantReward,
        TechnicalSupportReward,
    )
    from grpo.scenario import Expected, Scenario
    from grpo.trajectories import Outcome, Trajectory, TrajectoryGroup, Turn

    __version__: str

_NAMES = {
    "grpo.agents.agent": "Agent",
    "grpo.agents.conversations": "ConversationManager",
    "grpo.agents.domain": "CustomerServiceAgent DomainAgent",
    "grpo.agents.memory": "ConversationMemory",
    "grpo.agents.multi_turn": "MultiTurnAgent create_agent create_stub_agent",
    "grpo.agents.tool_agent": "ToolAgent",
    "grpo.agents.tools": "ToolError",
    "grpo.config.agent": "AgentConfig",
    "grpo.config.search_space": "get_search_space",
    "grpo.config.training": "CriticSettings LoraSettings TrustRegionSettings",
    "grpo.config.tuning": "HPOConfig",
    "grpo.environments.conversation": "ConversationEnvironment",
    "grpo.environments.environment": "Environment EnvironmentState SingleTurnEnvironment StepResult",
    "grpo.environments.gym": "GymEnvironment",
    "grpo.environments.presets": "CONVERSATION_CONFIGS",
    "grpo.environments.simulator": "SimulatedEnvironment Simulator",
    "grpo.environments.task": "TaskEnvironment",
    "grpo.environments.tool_calling": "ToolCallingEnvironment",
    "grpo.environments.trl": "TRLEnvironment",
    "grpo.errors": "ConfigError DataError GRPOError NoEffect NoLearningSignal NotApplicable PolicyError Unscored",
    "grpo.evaluation.evidence": "Evidence",
    "grpo.evaluation.schema": "GateCheck",
    "grpo.messages": "Message Tool ToolCall",
    "grpo.notebook.adjuster": "Adjuster",
    "grpo.notebook.auto": "AutoTrainer",
    "grpo.notebook.callbacks": "Callback CheckpointCallback EarlyStoppingCallback TrainingControl",
    "grpo.notebook.config": "TrainingConfig TrainingProfile get_config_for_task",
    "grpo.notebook.diagnostics": "DiagnosticsMonitor IterationRecord",
    "grpo.notebook.engine": "ComputationalGRPOEngine",
    "grpo.notebook.trainer": "MultiTurnGRPOTrainer SingleTurnGRPOTrainer train",
    "grpo.notebook.tune": "quick_hpo",
    "grpo.policy.catalog": "open_policy",
    "grpo.policy.policy": "Generation Policy Prompt Sampler Sampling Session",
    "grpo.policy.scripted": "ScriptedPolicy",
    "grpo.renderers.chat_template": "Renderer",
    "grpo.rewards.composite": "CompositeReward MultiObjectiveReward",
    "grpo.rewards.learned.safety": "SafetyReward",
    "grpo.rewards.presets": "create_customer_service_reward create_domain_reward",
    "grpo.rewards.reward": "Episode GroupReward RewardContext RewardFunction RewardResult reward_function",
    "grpo.rewards.task": "ChecksReward EnvironmentReward TaskCompletionReward",
    "grpo.rewards.text.correctness": "CorrectnessReward",
    "grpo.rewards.text.lexical": "ConcisenessReward SimilarityAwareReward",
    "grpo.rewards.text.quality": "CustomerServiceReward EngagementReward HelpfulnessReward QualityReward "
    "SalesAssistantReward TechnicalSupportReward",
    "grpo.scenario": "Expected Scenario",
    "grpo.trajectories": "Outcome Trajectory TrajectoryGroup Turn",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = (*_HOME,)


def __getattr__(name: str) -> Any:
    """Import the module of a public name on first use."""
    if name == "__version__":
        return version(DISTRIBUTION)
    if name not in _HOME:
        raise AttributeError(f"module 'grpo' has no {name!r}")
    return getattr(import_module(_HOME[name]), name)
