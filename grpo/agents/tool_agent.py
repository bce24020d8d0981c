"""An agent that calls functions: what its text asks for is run, and it speaks on with the result.

    user "6 · 7?"   agent <tool_call>{"name": "calculate", …}</tool_call>   tool 42   agent "It is 42."

All of it is one turn of the agent, in rollouts too: the calls that it sampled are trained on, the results are read.
Calls of tools that are the environment's own go to the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo.agents.agent import Context
from grpo.agents.memory import ConversationMemory
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.tools import problem, tool_message, toolbox
from grpo.agents.transcript import TokenTranscript
from grpo.config.agent import AgentConfig
from grpo.errors import ConfigError
from grpo.messages import Message, parse_assistant
from grpo.policy.policy import Policy
from grpo.renderers.chat_template import Renderer


class ToolAgent(MultiTurnAgent):
    """`tools` are dicts with `name` and `function`, see `grpo.agents.tools`.

    After `max_rounds` rounds of calls the next ones are refused, and what it says then is its reply.
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
        self.toolbox = toolbox(tools, timeout_s=tool_timeout_s)
        self.tools = self.toolbox.tools

    def register_tool(self, name: str, function: Callable[..., Any], **settings: Any) -> None:
        """Add a tool before `initialize`; `settings` are those of `Toolbox.register`.

        Raises `ConfigError` afterwards, as the model has been shown its tools by then.
        """
        if self.renderer is not None:
            raise ConfigError(f"tool {name} comes too late: register tools before initialize")
        self.toolbox.register(name, function, **settings)
        self.tools = self.toolbox.tools

    async def answer(self, transcript: TokenTranscript, messages: Sequence[Message], context: Context | None) -> str:
        """Speak, run what was called, and speak on, until nothing is called."""
        heard = list(messages)
        for number in range(self.max_rounds + 1):
            text = await super().answer(transcript, heard, context)
            message = parse_assistant(text)
            if self._is_for_the_world(transcript, message):
                return text
            if number < self.max_rounds:
                result = await self.toolbox.answer(message)
            elif message.tool_calls:
                result = tool_message(problem("too_many_rounds", f"{number} rounds of calls are enough; answer now"))
            else:
                result = None
            if result is None:
                return text
            transcript.add_messages(message, result)
            heard += (message, result)
        return await super().answer(transcript, heard, context)

    def _is_for_the_world(self, transcript: TokenTranscript, message: Message) -> bool:
        """Whether all calls are of tools that the policy was shown and that are not the agent's."""
        world = {tool.name for tool in transcript.renderer.tools} - {tool.name for tool in self.tools}
        return bool(message.tool_calls) and all(call.name in world for call in message.tool_calls)
