"""An agent that holds conversations: a policy under a system prompt, with a strategy and a memory.

    respond            a rollout, or a manager of conversations, asks for a turn
    └ process_turn         a user has spoken                           ← override to change what the policy hears
      └ generate_response      messages in, text out                   ← or what it is taken to have said
        └ the policy               reads what is new, and speaks

The hooks are called by rollouts as by everybody else. The policy is trained on the tokens that it sampled and nothing
else: a reply that a hook changed or wrote itself is judged by the reward as it is, and its tokens are not trained on.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from grpo.agents.agent import Agent, ChatMessage, Context, conversation, to_chat
from grpo.agents.backend import make_renderer, open_backend
from grpo.agents.compression import compress, window
from grpo.agents.memory import ConversationMemory
from grpo.agents.reasoning import split_reasoning, stable_prefix
from grpo.agents.strategies import strategy_prompt
from grpo.agents.transcript import Reply, TokenTranscript, current_transcript
from grpo.config.agent import AgentConfig
from grpo.errors import ConfigError, PolicyError
from grpo.messages import Message, Tool
from grpo.policy.policy import Policy, Sampling
from grpo.renderers.chat_template import Renderer

logger = logging.getLogger(__name__)

MAX_RECALLED = 3
"""Things remembered from earlier conversations that are put before a new one."""


class MultiTurnAgent(Agent):
    """See the module. Its policy is the one of `config.model_name`, or any object that is a `Policy`.

    A policy without a tokenizer is one that reads messages; one that reads tokens brings its `tokenizer`, or a
    `renderer` is given.
    """

    tools: tuple[Tool, ...] = ()
    """Tools of the agent itself; a renderer must know them."""

    def __init__(
        self,
        config: AgentConfig | None = None,
        *,
        memory: ConversationMemory | None = None,
        policy: Policy | None = None,
        renderer: Renderer | None = None,
    ) -> None:
        self.config = config or AgentConfig()
        self.memory = memory
        self.policy = policy
        self.renderer = renderer
        self._seeds = itertools.count(self.config.seed)

    @classmethod
    def from_model(cls, name: str, **settings: Any) -> Self:
        """The agent that speaks with this model; `settings` are those of `AgentConfig`."""
        return cls(AgentConfig(model_name=name, **settings))

    async def initialize(self) -> None:
        """Open the policy; raises `PolicyError` where there is none, `ConfigError` where none is named."""
        self.set_policy(self.policy or open_backend(self.config, self.renderer))

    def set_policy(self, policy: Policy) -> None:
        """Speak with this policy from now on."""
        self.policy = policy
        self.renderer = self.renderer or make_renderer(policy, self.tools)

    async def generate_response(self, messages: Sequence[ChatMessage] | str, context: Context | None = None) -> str:
        """The reply to a conversation, or to one line of a user."""
        heard = conversation(messages)
        transcript = current_transcript.get()
        if transcript is not None and transcript.speaker is self:
            return await self.answer(transcript, heard, transcript.context if context is None else context)
        async with self.transcript() as own:
            text = await self.answer(own, heard, context)
        self.remember(heard[-1], text, context)
        return text

    async def process_turn(
        self, history: Sequence[ChatMessage], user_input: str, context: Context | None = None
    ) -> str:
        """The reply to what a user says after `history`."""
        return await self._generate([*history, {"role": "user", "content": user_input}], context)

    async def stream_response(
        self, messages: Sequence[ChatMessage] | str, context: Context | None = None
    ) -> AsyncIterator[str]:
        """The reply in pieces as it is said; joined they are the text that `generate_response` gives.

        An agent with hooks of its own may still change its reply, which then comes in one piece.
        """
        kind = type(self)
        edits = (kind.generate_response, kind.answer) != (MultiTurnAgent.generate_response, MultiTurnAgent.answer)
        tokens: asyncio.Queue[int | None] = asyncio.Queue()
        said: list[int] = []
        sent = ""
        async with self.transcript(on_token=None if edits else tokens.put_nowait) as transcript:

            async def answer() -> str:
                current_transcript.set(transcript)
                transcript.begin_turn(self, context=context)
                try:
                    return await self._generate(messages, context)
                finally:
                    tokens.put_nowait(None)

            speaking = asyncio.create_task(answer())
            try:
                while (token := await tokens.get()) is not None:
                    said.append(token)
                    sure = stable_prefix(transcript.renderer.decode(said), reasoning=self.config.enable_reasoning)
                    if len(sure) > len(sent):
                        yield sure[len(sent) :]
                        sent = sure
                text = await speaking
            finally:
                speaking.cancel()
        self.remember(conversation(messages)[-1], text, context)
        if len(text) > len(sent):
            yield text[len(sent) :]

    async def respond(
        self, transcript: TokenTranscript, messages: Sequence[Message], context: Context | None = None
    ) -> Reply:
        """One turn on this floor, after `messages` that are new: what a rollout asks for.

        A user's message goes through `process_turn`, another one, such as a tool's result, to `generate_response`.
        """
        transcript.begin_turn(self, messages, context)
        *history, last = map(to_chat, transcript.conversation)
        holding = current_transcript.set(transcript)
        try:
            if last["role"] == "user":
                text = await self.process_turn(history, last["content"], context)
            else:
                text = await self._generate([*history, last], context)
        finally:
            current_transcript.reset(holding)
        return transcript.end_turn(text, self._brief(transcript, transcript.conversation, context))

    def instructions(self, messages: Sequence[Message], context: Context) -> list[str]:
        """Paragraphs of the system prompt for a conversation that stands here; override to add one.

        What is on a floor keeps the instructions that it began with.
        """
        strategy = context.get("strategy") or self.config.strategy
        return [
            self.config.system_prompt,
            strategy_prompt(strategy, messages, context) if strategy else "",
            _listed("What you know:", context.get("knowledge") or ()),
            _listed("From earlier conversations:", self._recalled(messages, context)),
        ]

    def remember(self, message: Message, reply: str, context: Context | None = None) -> None:
        """Put an exchange into the memory, where there is one. Rollouts read it and never write."""
        if self.memory is not None:
            user_id = str((context or {}).get("user_id", ""))
            if message.role == "user":
                self.memory.add("user", message.content, user_id=user_id)
            self.memory.add("assistant", reply, user_id=user_id)

    def require_append_only(self) -> None:
        """Raise `ConfigError` where this agent would have its policy forget, which no token record of a rollout can.

        An episode is one sequence of tokens, and the learner computes each from all before it. A shortened past
        would be another sequence, whose share of the reward nobody knows.
        """
        for name in ("memory_window", "enable_context_compression"):
            if getattr(self.config, name):
                raise ConfigError(
                    f"{name} {getattr(self.config, name)} is for serving: in a rollout tokens that were read stay "
                    "read; leave it out, and let rollout.max_context end episodes that grow too long"
                )

    @asynccontextmanager
    async def transcript(self, *, on_token: Callable[[int], None] | None = None) -> AsyncIterator[TokenTranscript]:
        """A conversation with the agent's policy, sampled as the config says.

        Raises `PolicyError` before `initialize`.
        """
        config, policy, renderer = self.config, self.policy, self.renderer
        if policy is None or renderer is None:
            raise PolicyError("the agent has no model yet: await agent.initialize() first")
        sampling = Sampling(
            temperature=config.temperature,
            max_new_tokens=config.max_new_tokens,
            seed=next(self._seeds),
            top_p=config.top_p,
            top_k=config.top_k,
        )
        limit = min(policy.max_context, config.max_context or policy.max_context)
        async with policy.sampler(concurrency=1, renderer=renderer) as sampler:
            session = sampler.open()
            try:
                yield TokenTranscript(session, renderer, sampling, max_context=limit, on_token=on_token)
            finally:
                session.close()

    async def answer(self, transcript: TokenTranscript, messages: Sequence[Message], context: Context | None) -> str:
        """Let the policy speak: all turns end here, on some floor."""
        briefed = self._brief(transcript, messages, context)
        heard, places = self._shorten(transcript, briefed)
        dropped = tuple(place - len(briefed) + len(messages) for place in places)
        if dropped:
            logger.info("messages that the policy does not see: %s", ", ".join(map(str, dropped)))
        text = await transcript.generate(heard)
        reasoning, answer = split_reasoning(text) if self.config.enable_reasoning else (None, text)
        transcript.set_reply(answer, reasoning=reasoning, dropped=dropped)
        return answer

    async def _generate(self, messages: Sequence[ChatMessage] | str, context: Context | None) -> str:
        """Through an override, which may take the conversation alone; the floor still holds the context."""
        if context is None or len(inspect.signature(self.generate_response).parameters) < 2:
            return await self.generate_response(messages)
        return await self.generate_response(messages, context)

    def _brief(
        self, transcript: TokenTranscript, messages: Sequence[Message], context: Context | None
    ) -> list[Message]:
        """The conversation as the policy sees it: one system message first, where there is anything to say in it."""
        if transcript.instructions is None:
            transcript.instructions = "\n\n".join(filter(None, self.instructions(messages, context or {})))
        given = messages[0].content if messages[0].role == "system" else ""
        rest = messages[1:] if messages[0].role == "system" else messages
        prompt = "\n\n".join(filter(None, (transcript.instructions, given)))
        return [Message(role="system", content=prompt), *rest] if prompt else list(rest)

    def _shorten(self, transcript: TokenTranscript, messages: list[Message]) -> tuple[list[Message], tuple[int, ...]]:
        """What of the conversation the policy gets to see, and the places of the messages that it does not."""
        config, whole = self.config, messages
        dropped: tuple[int, ...] = ()
        if config.memory_window is not None:
            messages, dropped = window(messages, config.memory_window)
        room = transcript.max_context - config.max_new_tokens
        if config.enable_context_compression:

            def count(messages: Sequence[Message]) -> int:
                return len(transcript.renderer.build_prompt(messages))

            before = count(messages)
            if before > room:
                messages, more = compress(
                    messages,
                    most=min(room, int(config.compression_ratio * before)),
                    strategy=config.compression_strategy,
                    count=count,
                )
                first = int(whole[0].role == "system")
                dropped = tuple(range(first, first + len(dropped) + len(more)))
                logger.info(
                    "conversation compressed by %s from %d to %d tokens",
                    config.compression_strategy,
                    before,
                    count(messages),
                )
        return messages, dropped

    def _recalled(self, messages: Sequence[Message], context: Context) -> list[str]:
        if self.memory is None:
            return []
        asked = [message.content for message in messages if message.role == "user"]
        user_id = str(context.get("user_id", ""))
        here = {message.content for message in messages}
        return self.memory.recall(asked[-1] if asked else "", user_id=user_id, limit=MAX_RECALLED, without=here)


def _listed(title: str, facts: Sequence[str]) -> str:
    return "\n".join((title, *(f"- {fact}" for fact in facts))) if facts else ""
