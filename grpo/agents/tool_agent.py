"""Agent with tools: runs the functions that its text calls and generates again with their results.

    user "6 · 7?"   agent <tool_call>{"name": "calculate", …}</tool_call>   tool 42   agent "It is 42."

All of it is one turn of the agent, in rollouts too: sampled calls are trained on, results are prompt tokens.
Calls of the environment's tools go to the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo.agents.agent import Context
from grpo.agents.memory import ConversationMemory
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.tools import error_result, make_toolbox, tool_message
from grpo.agents.transcript import TokenTranscript
from grpo.config.agent import AgentConfig
from grpo.errors import ConfigError
from grpo.messages import Message
from grpo.policy.policy import Policy
from grpo.renderers.chat_template import Renderer


class ToolAgent(MultiTurnAgent):
    """Agent with `tools`, dicts with `name` and `function`, see `grpo.agents.tools`.

    After `max_rounds` rounds of calls the next one gets an error result, and the generation after it is the reply.
    """

    def __init__(
        self,
        config: AgentConfig | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        tool_timeout_s: float = 30.0,
        max_rounds: int = 4,
        memory: ConversationMemory | None = None,
        policy: Policy | None = None,
        renderer: Renderer | None = None,
    ) -> None:
        super().__init__(config, memory=memory, policy=policy, renderer=renderer)
        if max_rounds < 1:
            raise ConfigError(f"max_rounds {max_rounds} of a ToolAgent must be at least 1")
        self.max_rounds = max_rounds
        self.toolbox = make_toolbox(tools, timeout_s=tool_timeout_s)
        self.tools = self.toolbox.tools

    def register_tool(self, name: str, function: Callable[..., Any], **settings: Any) -> None:
        """Add a tool before `initialize`, with the settings of `Toolbox.register`.

        Raises `ConfigError` after `initialize`, because the renderer already has the tools.
        """
        if self.renderer is not None:
            raise ConfigError(f"tool {name} was registered after initialize(). Register tools before it")
        self.toolbox.register(name, function, **settings)
        self.tools = self.toolbox.tools

    async def generate_reply(
        self, transcript: TokenTranscript, messages: Sequence[Message], context: Context | None
    ) -> str:
        """Generate, run the tool calls, and generate again, until a text has no calls."""
        history = list(messages)
        for number in range(self.max_rounds + 1):
            text = await super().generate_reply(transcript, history, context)
            message = transcript.reply_message(text)
            if self._calls_environment_tools(transcript, message):
                return text
            if number < self.max_rounds:
                result = await self.toolbox.execute(message)
            elif message.tool_calls:
                result = tool_message(
                    error_result("too_many_rounds", f"{number} rounds of calls are enough; answer now")
                )
            else:
                result = None
            if result is None:
                return text
            transcript.add_messages(message, result)
            history += (message, result)
        return await super().generate_reply(transcript, history, context)

    def _calls_environment_tools(self, transcript: TokenTranscript, message: Message) -> bool:
        """Check that all calls are of the environment's tools, which the policy sees and the agent lacks."""
        environment_tools = {tool.name for tool in transcript.renderer.tools} - {tool.name for tool in self.tools}
        return bool(message.tool_calls) and all(call.name in environment_tools for call in message.tool_calls)
