"""An agent that knows facts of its domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo.agents.agent import Context
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.messages import Message


class DomainAgent(MultiTurnAgent):
    """Its prompt holds `domain_knowledge`: what each thing is, under its name.

    {"returns": "within thirty days"}  →  What you know: returns: within thirty days
    """

    def __init__(self, config: AgentConfig | None, domain_knowledge: Mapping[str, Any], **parts: Any) -> None:
        super().__init__(config, **parts)
        self.knowledge = dict(domain_knowledge)

    def enhance_with_knowledge(self, context: Context | None) -> dict[str, Any]:
        """The context with the agent's facts after those that it holds already; override to choose among them."""
        facts = [f"{name}: {fact}" for name, fact in self.knowledge.items()]
        return {**(context or {}), "knowledge": [*(context or {}).get("knowledge", ()), *facts]}

    def instructions(self, messages: Sequence[Message], context: Context) -> list[str]:
        """See `MultiTurnAgent.instructions`."""
        return super().instructions(messages, self.enhance_with_knowledge(context))
