"""An agent: a policy that speaks through a renderer, under a system prompt, with tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.messages import Message
from grpo.policy.policy import Generation, Prompt, Sampling, Session
from grpo.renderer import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What turns a conversation into the next message, token-exact."""

    renderer: Renderer
    system_prompt: str = ""

    def brief(self, messages: Sequence[Message], context: str = "") -> tuple[Message, ...]:
        """The conversation as the policy sees it: system prompt and context first, when there are any."""
        told = "\n\n".join(filter(None, (self.system_prompt, context)))
        return (Message(role="system", content=told), *messages) if told else tuple(messages)

    async def respond(self, session: Session, prompt: Prompt, sampling: Sampling) -> tuple[Message, Generation]:
        """Read what is new, speak one turn, and read what was said."""
        generation = await session.generate(prompt, sampling)
        return generation.message or self.renderer.read(generation.token_ids), generation
