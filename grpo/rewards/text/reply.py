"""A reply of the agent with the conversation before it: the input of the text rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.messages import Message
from grpo.rewards.reward import RewardContext


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReply:
    """One reply of the agent in its context."""

    user_turns: tuple[str, ...]
    """User turns so far. The reply answers the last one."""
    text: str
    previous: tuple[str, ...] = ()
    """Earlier replies of the agent."""
    context: str = ""
    """Knowledge given to the agent: the scenario's context, and results of tools."""

    @property
    def request(self) -> str:
        """Last user turn."""
        return self.user_turns[-1] if self.user_turns else ""

    @property
    def user_text(self) -> str:
        """All user turns so far."""
        return "\n".join(self.user_turns)


def agent_replies(turns: Sequence[Message], context: RewardContext) -> list[AgentReply]:
    """Replies of a conversation in order. A turn that only calls a tool is not a reply."""
    given = [context.scenario.context] if context.scenario is not None and context.scenario.context else []
    users: list[str] = []
    previous: list[str] = []
    replies = []
    for turn in turns:
        if turn.role == "user":
            users.append(turn.content)
        elif turn.role == "tool":
            given.append(turn.content)
        elif turn.role == "assistant" and not turn.tool_calls:
            replies.append(
                AgentReply(
                    user_turns=tuple(users), text=turn.content, previous=tuple(previous), context="\n".join(given)
                )
            )
            previous.append(turn.content)
    return replies


def reply_texts(turns: Sequence[Message]) -> list[str]:
    """Texts of the agent's replies, without turns that only call a tool."""
    return [turn.content for turn in turns if turn.role == "assistant" and not turn.tool_calls]
