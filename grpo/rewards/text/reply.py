"""A reply and what it replies to: what the text rewards look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.messages import Message
from grpo.rewards.reward import RewardContext


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReply:
    """One reply of the agent, with the conversation before it."""

    user_turns: tuple[str, ...]
    """What the customer has said so far; the last one is what the reply answers."""
    reply: str
    earlier: tuple[str, ...] = ()
    """What the agent has said before."""
    known: str = ""
    """What the agent was given to know: the scenario's context, and results of tools."""

    @property
    def asked(self) -> str:
        """What the reply answers."""
        return self.user_turns[-1] if self.user_turns else ""

    @property
    def said(self) -> str:
        """All that the customer said so far."""
        return "\n".join(self.user_turns)


def agent_replies(turns: Sequence[Message], context: RewardContext) -> list[AgentReply]:
    """The replies of a conversation in order; a turn that only calls a tool is none."""
    known = [context.scenario.context] if context.scenario is not None and context.scenario.context else []
    users: list[str] = []
    replies: list[str] = []
    found = []
    for turn in turns:
        if turn.role == "user":
            users.append(turn.content)
        elif turn.role == "tool":
            known.append(turn.content)
        elif turn.role == "assistant" and not turn.tool_calls:
            found.append(
                AgentReply(user_turns=tuple(users), reply=turn.content, earlier=tuple(replies), known="\n".join(known))
            )
            replies.append(turn.content)
    return found
