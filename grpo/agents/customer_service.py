"""A customer service agent, ready to be talked to or trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo.agents.domain import DomainAgent
from grpo.config.agent import AgentConfig

SYSTEM_PROMPT = "You serve the customers of a shop. Say what is true, and say it kindly and briefly."


class CustomerServiceAgent(DomainAgent):
    """`model` is an address, or the config of an agent, whose own prompt and strategy come first."""

    def __init__(
        self, model: str | AgentConfig, *, domain_knowledge: Mapping[str, Any] | None = None, **parts: Any
    ) -> None:
        config = AgentConfig(model_name=model) if isinstance(model, str) else model
        chosen = {"system_prompt": config.system_prompt or SYSTEM_PROMPT}
        if config.strategy is None:
            chosen["strategy"] = "customer_service"
        super().__init__(config.model_copy(update=chosen), domain_knowledge or {}, **parts)
