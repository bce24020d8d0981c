"""Multi-turn agent: a policy with a system prompt, a strategy and a memory.

    respond                  called by a rollout or a conversation manager for one turn
    └ process_turn           for a user message                        ← hook: override to change the prompt
      └ generate_response    messages in, text out                     ← hook: override to change the reply
        └ the policy         reads the new tokens and generates

Rollouts call the same hooks. The policy is trained only on the tokens that it sampled. If a hook changed or wrote a
reply, the reply is scored as it was sent, and its tokens are masked from the loss.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self

from grpo.agents.agent import Agent, ChatMessage, Context, to_messages
from grpo.agents.backend import make_backend, stub
from grpo.agents.compression import compress, window
from grpo.agents.memory import ConversationMemory
from grpo.agents.reasoning import stable_prefix
from grpo.agents.strategies import strategy_prompt
from grpo.agents.transcript import Reply, TokenTranscript, current_transcript
from grpo.config.agent import AgentConfig
from grpo.errors import ConfigError, PolicyError
from grpo.messages import Message, Tool, split_reasoning
from grpo.policy.policy import Policy, SampledToken, Sampling
from grpo.policy.renderer import make_renderer
from grpo.renderers.chat_template import Renderer
from grpo.user_failures import shown

logger = logging.getLogger(__name__)

MAX_RECALLED = 3
"""Most memories of earlier conversations in a system prompt."""


class MultiTurnAgent(Agent):
    """Agent of a policy: the model `config.model_name`, or any object that implements `Policy`.

    A policy that reads tokens has a `tokenizer`, or the caller passes a `renderer`. A policy without a `tokenizer`
    reads messages.
    """

    tools: tuple[Tool, ...] = ()
    """Tools of the agent itself. The renderer has to know them."""

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
        """Make an agent of this model. `settings` are the fields of `AgentConfig`."""
        return cls(AgentConfig(model_name=name, **settings))

    async def initialize(self) -> None:
        """Open the policy. Raises `ConfigError` if no model is set, `PolicyError` if the model is missing."""
        self.set_policy(self.policy or make_backend(self.config, self.renderer))

    def set_policy(self, policy: Policy) -> None:
        """Use this policy from now on."""
        self.policy = policy
        if self.renderer is None:
            tokenizer = getattr(policy, "tokenizer", None)
            self.renderer = make_renderer(tokenizer, tools=self.tools, settings=self.config.renderer)

    @property
    def overrides_replies(self) -> bool:
        """True if the class overrides a hook, because it may then change a reply or sample several texts in a turn."""
        hooks = ("respond", "process_turn", "generate_response", "generate_reply")
        return any(getattr(type(self), name) is not getattr(MultiTurnAgent, name) for name in hooks)

    async def generate_response(self, messages: Sequence[ChatMessage] | str, context: Context | None = None) -> str:
        """Reply to a conversation. A string is one user message."""
        history = to_messages(messages)
        transcript = current_transcript.get()
        if transcript is not None and transcript.agent is self:
            return await self.generate_reply(transcript, history, transcript.context if context is None else context)
        async with self.open_transcript() as own:
            text = await self.generate_reply(own, history, context)
        self.remember(history[-1], text, context)
        return text

    async def process_turn(
        self, history: Sequence[ChatMessage], user_input: str, context: Context | None = None
    ) -> str:
        """Reply to a user message after `history`."""
        return await self._call_generate_response([*history, {"role": "user", "content": user_input}], context)

    async def stream_response(
        self, messages: Sequence[ChatMessage] | str, context: Context | None = None
    ) -> AsyncIterator[str]:
        """Stream the reply in chunks, which join to the text that `generate_response` returns.

        If a subclass has hooks, they may still change the reply, so the reply is sent as one chunk.
        """
        tokens: asyncio.Queue[SampledToken | None] = asyncio.Queue()
        token_ids: list[int] = []
        sent = ""
        async with self.open_transcript(on_token=None if self.overrides_replies else tokens.put_nowait) as transcript:

            async def respond() -> str:
                current_transcript.set(transcript)
                transcript.begin_turn(self, context=context)
                try:
                    return await self._call_generate_response(messages, context)
                finally:
                    tokens.put_nowait(None)

            response = asyncio.create_task(respond())
            try:
                while (token := await tokens.get()) is not None:
                    token_ids.append(token.id)
                    stable = stable_prefix(
                        transcript.renderer.decode(token_ids), reasoning=self.config.enable_reasoning
                    )
                    if len(stable) > len(sent):
                        yield stable[len(sent) :]
                        sent = stable
                text = await response
            finally:
                response.cancel()
        self.remember(to_messages(messages)[-1], text, context)
        if len(text) > len(sent):
            yield text[len(sent) :]

    async def respond(
        self, transcript: TokenTranscript, messages: Sequence[Message], context: Context | None = None
    ) -> Reply:
        """Generate one turn in a transcript, after new `messages`. Rollouts call this.

        A user message goes to `process_turn`. Any other message, such as a tool result, goes to `generate_response`.
        """
        transcript.begin_turn(self, messages, context)
        *history, last = (message.to_template() for message in transcript.conversation)
        reset_token = current_transcript.set(transcript)
        try:
            if last["role"] == "user":
                turn = self.process_turn(history, last["content"], context)
                if not inspect.isawaitable(turn):
                    raise TypeError(f"process_turn returned {shown(turn)}. Write it with `async def`")
                text = await turn
            else:
                text = await self._call_generate_response([*history, last], context)
        finally:
            current_transcript.reset(reset_token)
        if not isinstance(text, str):
            raise TypeError(f"the agent's reply is {shown(text)}. Return the text from process_turn, generate_response")
        return transcript.end_turn(text, self._with_system_prompt(transcript, transcript.conversation, context))

    def instructions(self, messages: Sequence[Message], context: Context) -> list[str]:
        """Paragraphs of the system prompt at this point of a conversation. Override it to add one.

        A transcript keeps the instructions of its first turn.
        """
        strategy = context.get("strategy") or self.config.strategy
        return [
            self.config.system_prompt,
            strategy_prompt(strategy, messages, context) if strategy else "",
            _bullet_list("What you know:", context.get("knowledge") or ()),
            _bullet_list("From earlier conversations:", self._recall(messages, context)),
        ]

    def remember(self, message: Message, reply: str, context: Context | None = None) -> None:
        """Add a message and its reply to the memory, if there is one. Rollouts read the memory and never write it."""
        if self.memory is not None:
            user_id = str((context or {}).get("user_id", ""))
            if message.role == "user":
                self.memory.add("user", message.content, user_id=user_id)
            self.memory.add("assistant", reply, user_id=user_id)

    def forget(self, is_erased: Callable[[str], bool]) -> None:
        """Remove all memories of a `user_id` for which `is_erased` returns True.

        A server calls this when a user or a conversation is erased. If an agent keeps its own memory, it must override
        this method.
        """
        if self.memory is not None:
            self.memory.forget(is_erased)

    def require_append_only(self) -> None:
        """Raise `ConfigError` if the config truncates or compresses the context, which a rollout cannot record.

        An episode is one token sequence, and the learner conditions each token on all tokens before it. If the context
        were shortened, another sequence would start, and credit between the two is undefined.
        """
        for name in ("memory_window", "enable_context_compression"):
            if getattr(self.config, name):
                raise ConfigError(
                    f"{name} {getattr(self.config, name)} can be used only in serving, because a rollout never drops "
                    "tokens from the context. Leave it out, and let rollout.max_context end episodes that grow too "
                    "long"
                )

    @asynccontextmanager
    async def open_transcript(
        self, *, on_token: Callable[[SampledToken], bool | None] | None = None
    ) -> AsyncIterator[TokenTranscript]:
        """Open a conversation with the agent's policy, sampled with the config's settings.

        Raises `PolicyError` if `initialize` was not called.
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
        max_context = min(policy.max_context, config.max_context or policy.max_context)
        async with policy.sampler(concurrency=1, renderer=renderer) as sampler:
            session = sampler.open()
            try:
                yield TokenTranscript(session, renderer, sampling, max_context=max_context, on_token=on_token)
            finally:
                session.close()

    async def generate_reply(
        self, transcript: TokenTranscript, messages: Sequence[Message], context: Context | None
    ) -> str:
        """Generate with the policy in a transcript. Every turn ends here."""
        prompt = self._with_system_prompt(transcript, messages, context)
        shortened, dropped_from_prompt = await self._fit_context(transcript, prompt)
        dropped = tuple(index - len(prompt) + len(messages) for index in dropped_from_prompt)
        if dropped:
            logger.info("messages dropped from the prompt: %s", ", ".join(map(str, dropped)))
        text = await transcript.generate(shortened)
        reasoning, answer = split_reasoning(text) if self.config.enable_reasoning else (None, text)
        transcript.set_reply(answer, reasoning=reasoning, dropped=dropped)
        return answer

    async def _call_generate_response(self, messages: Sequence[ChatMessage] | str, context: Context | None) -> str:
        """Call `generate_response`. An override may take only messages, because the transcript has the context."""
        if context is None or len(inspect.signature(self.generate_response).parameters) < 2:
            return await self.generate_response(messages)
        return await self.generate_response(messages, context)

    def _with_system_prompt(
        self, transcript: TokenTranscript, messages: Sequence[Message], context: Context | None
    ) -> list[Message]:
        """Prompt of the policy: one system message, unless it would be empty, then the conversation."""
        if transcript.instructions is None:
            returned = self.instructions(messages, context or {})
            paragraphs = [*filter(None, returned)] if not isinstance(returned, str) and returned is not None else [None]
            if not all(isinstance(text, str) for text in paragraphs):
                raise TypeError(f"instructions returned {shown(returned)}. Return a list of texts, one per paragraph")
            transcript.instructions = "\n\n".join(paragraphs)
        given = messages[0].content if messages[0].role == "system" else ""
        rest = messages[1:] if messages[0].role == "system" else messages
        prompt = "\n\n".join(filter(None, (transcript.instructions, given)))
        return [Message(role="system", content=prompt), *rest] if prompt else list(rest)

    async def _fit_context(
        self, transcript: TokenTranscript, messages: list[Message]
    ) -> tuple[list[Message], tuple[int, ...]]:
        """Apply memory window and context compression. Also returns the indices of the dropped messages.

        A further prompt of one turn, which has a tool call and its result, goes on from the first prompt of the turn.
        """
        if transcript.fitted is not None:
            count, fitted, dropped = transcript.fitted
            return [*fitted, *messages[count:]], dropped
        config, full = self.config, messages
        dropped = ()
        if config.memory_window is not None:
            messages, dropped = window(messages, config.memory_window)
        if config.enable_context_compression:
            shorten = partial(self._compressed, transcript, messages)
            messages, compressed = await transcript.prepare(messages, shorten)
            if compressed is not None:
                first = int(full[0].role == "system")
                dropped = tuple(range(first, first + len(dropped) + len(compressed)))
        transcript.fitted = (len(full), messages, dropped)
        return messages, dropped

    def _compressed(
        self, transcript: TokenTranscript, messages: list[Message]
    ) -> tuple[list[Message], tuple[int, ...] | None]:
        """Messages that fit the context, and the dropped indices, or None if all fit. May run on a thread."""
        config = self.config

        def count_tokens(messages: Sequence[Message]) -> int:
            return len(transcript.renderer.build_prompt(messages))

        room = transcript.max_context - config.max_new_tokens
        before = count_tokens(messages)
        if before <= room:
            return messages, None
        shortened, dropped = compress(
            messages,
            max_tokens=min(room, int(config.compression_ratio * before)),
            strategy=config.compression_strategy,
            count_tokens=count_tokens,
        )
        logger.info(
            "conversation compressed by %s from %d to %d tokens",
            config.compression_strategy,
            before,
            count_tokens(shortened),
        )
        return shortened, dropped

    def _recall(self, messages: Sequence[Message], context: Context) -> list[str]:
        if self.memory is None:
            return []
        user_messages = [message.content for message in messages if message.role == "user"]
        user_id = str(context.get("user_id", ""))
        present = {message.content for message in messages}
        query = user_messages[-1] if user_messages else ""
        return self.memory.recall(query, user_id=user_id, limit=MAX_RECALLED, exclude=present)


def create_agent(config: AgentConfig) -> MultiTurnAgent:
    """Create the agent of a config: a stub for `stub_responses`, else one with a model."""
    return create_stub_agent(config) if config.is_stub else MultiTurnAgent(config)


def create_stub_agent(config: AgentConfig) -> MultiTurnAgent:
    """Create an agent that replies with `stub_responses` in turn. Raises `ConfigError` without them."""
    if not config.is_stub:
        raise ConfigError("a stub agent needs stub_responses. Set use_stub_model and stub_responses")
    agent = MultiTurnAgent(config)
    agent.set_policy(stub(config.stub_responses))
    return agent


def _bullet_list(title: str, facts: Sequence[str]) -> str:
    return "\n".join((title, *(f"- {fact}" for fact in facts))) if facts else ""
