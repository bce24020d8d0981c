"""Agents of a domain: facts in the system prompt, and a ready-made customer service agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo.agents.agent import Context
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.messages import Message

CUSTOMER_SERVICE_PROMPT = "You serve the customers of a shop. Say what is true, and say it kindly and briefly."


class DomainAgent(MultiTurnAgent):
    """Agent that lists `domain_knowledge` in its system prompt, a fact under each name.

    {"returns": "within thirty days"}  →  What you know: returns: within thirty days
    """

    def __init__(self, config: AgentConfig | None, domain_knowledge: Mapping[str, Any], **parts: Any) -> None:
        super().__init__(config, **parts)
        self.knowledge = dict(domain_knowledge)

    def enhance_with_knowledge(self, context: Context | None) -> dict[str, Any]:
        """Append the agent's facts to the facts in the context. Override it to select among them."""
        facts = [f"{name}: {fact}" for name, fact in self.knowledge.items()]
        return {**(context or {}), "knowledge": [*(context or {}).get("knowledge", ()), *facts]}

    def instructions(self, messages: Sequence[Message], context: Context) -> list[str]:
        """See `MultiTurnAgent.instructions`."""
        return super().instructions(messages, self.enhance_with_knowledge(context))


class CustomerServiceAgent(DomainAgent):
    """Customer service agent. `model` is an address, or a config with a prompt and strategy that take precedence."""

    def __init__(
        self, model: str | AgentConfig, *, domain_knowledge: Mapping[str, Any] | None = None, **parts: Any
    ) -> None:
        config = AgentConfig(model_name=model) if isinstance(model, str) else model
        defaults = {"system_prompt": config.system_prompt or CUSTOMER_SERVICE_PROMPT}
        if config.strategy is None:
            defaults["strategy"] = "customer_service"
        super().__init__(config.model_copy(update=defaults), domain_knowledge or {}, **parts)
