from __future__ import annotations

from typing import Any

from grpo.agents.agent import Context
from grpo.agents.domain import CustomerServiceAgent, DomainAgent
from grpo.config.agent import AgentConfig
from grpo.policy.scripted import ScriptedPolicy
from grpo.renderers.byte_renderer import ByteRenderer
from tests.grpo.agents.fixtures import Echo, roll_out, run

FACTS = {"returns": "within thirty days", "shipping": "five days"}


def _prompt(agent: DomainAgent, context: Context | None = None) -> str:
    run(agent.initialize())
    run(agent.generate_response("hi", context))
    return str(agent.policy.prompts[-1][0].content)  # type: ignore[union-attr]


def test_facts_of_the_domain_stand_in_the_prompt():
    """After the facts of the context."""
    prompt = _prompt(DomainAgent(AgentConfig(), FACTS, policy=Echo()), {"knowledge": ["It is Monday."]})
    assert prompt == "What you know:\n- It is Monday.\n- returns: within thirty days\n- shipping: five days"


def test_a_subclass_may_select_facts():
    """`enhance_with_knowledge` is a hook."""

    class Chooses(DomainAgent):
        def enhance_with_knowledge(self, context: Context | None) -> dict[str, Any]:
            return {**(context or {}), "knowledge": [self.knowledge["returns"]]}

    assert _prompt(Chooses(None, FACTS, policy=Echo())) == "What you know:\n- within thirty days"


def test_the_customer_service_agent_plays_an_episode_on_a_script():
    """Its prompt and strategy are in the trajectory; a prompt of one's own replaces the default."""
    agent = CustomerServiceAgent("stub://demo", domain_knowledge=FACTS)
    policy = ScriptedPolicy(["How can I help?", "It is on its way."])
    (trajectory,) = roll_out(agent, policy, ByteRenderer(), group_size=1, lines=("hi", "my parcel"), max_new_tokens=100,
                     max_context=4000)  # fmt: skip
    prompt = trajectory.messages[0].content
    assert prompt.startswith("You serve the customers of a shop.")
    assert "\n\nStrategy customer_service. " in prompt
    assert "- returns: within thirty days" in prompt
    assert [m.content for m in trajectory.messages if m.role == "assistant"] == ["How can I help?", "It is on its way."]
    own = AgentConfig(system_prompt="Be kind.", strategy="sales")
    assert _prompt(CustomerServiceAgent(own, policy=Echo())).startswith("Be kind.\n\nStrategy sales")
