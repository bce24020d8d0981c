"""Language model that writes the messages of a simulated user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from grpo.environments.users.user import SimulatedUserError
from grpo.errors import ConfigError
from grpo.messages import Message
from grpo.policy.catalog import CHAT, STUB, is_weights, open_policy
from grpo.policy.policy import Policy, Prompt, Sampler, Sampling
from grpo.policy.renderer import make_renderer
from grpo.renderers.chat_template import Renderer

END = "[END]"
"""Reply of the model when the user has what it wants."""

ROLE = """\
You are a customer who talks to a support agent. Stay in this role: you ask, the agent helps.
Say one short message at a time, in your own words. Tell a fact of the list only when the agent asks for it.
When you have what you want, write {end} and nothing else.

{goal}"""
_GREETING = Message(role="user", content="Hello, what can I do for you?")


class UserModel:
    """Policy in the role of the user. Each turn is a new prompt with the whole conversation.

    Raises `SimulatedUserError` if the policy's server cannot be reached or does not answer in time.
    """

    def __init__(
        self, policy: Policy, renderer: Renderer, *, temperature: float = 0.7, max_new_tokens: int = 128
    ) -> None:
        self.policy = policy
        self.renderer = renderer
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self._samplers: dict[asyncio.AbstractEventLoop, Sampler] = {}

    @asynccontextmanager
    async def serve(self, *, concurrency: int) -> AsyncIterator[None]:
        """Keep one sampler for all generations in the running event loop."""
        loop = asyncio.get_running_loop()
        async with self.policy.sampler(concurrency=concurrency, renderer=self.renderer) as sampler:
            self._samplers[loop] = sampler
            try:
                yield
            finally:
                del self._samplers[loop]

    async def generate(self, goal: str, history: Sequence[Message], *, seed: int) -> str:
        """Generate the user's next message in a conversation. The last message of `history` must be the agent's."""
        sampler = self._samplers.get(asyncio.get_running_loop())
        if sampler is None:
            async with self.serve(concurrency=1):
                return await self.generate(goal, history, seed=seed)
        messages = (Message(role="system", content=ROLE.format(goal=goal, end=END)), _GREETING, *_swapped(history))
        prompt = Prompt(new_ids=self.renderer.build_prompt(messages), messages=messages)
        sampling = Sampling(temperature=self.temperature, max_new_tokens=self.max_new_tokens, seed=seed)
        session = sampler.open()
        try:
            completion = await session.generate(prompt, sampling)
        except (ConnectionError, TimeoutError) as error:
            raise SimulatedUserError(f"the simulated user's model does not answer: {error}") from error
        finally:
            session.close()
        return (completion.message or self.renderer.parse_reply(completion.token_ids)).content


def check_address(address: str) -> None:
    """Raise `ConfigError` if the policy at an address cannot generate a user's messages."""
    if not is_weights(address) and address.partition("://")[0].partition("+")[0] not in (CHAT, STUB):
        raise ConfigError(
            f"environment.model {address} is not the address of a model for the simulated user. Write "
            f"{CHAT}+http(s)://host/v1#model, {STUB}://replies.yaml, a model folder, org/name, file.gguf or "
            "models:/name@alias"
        )


def open_user_model(address: str, *, temperature: float, max_new_tokens: int) -> UserModel:
    """Open the user model at an address: a chat server, a script, or weights.

    Raises `ConfigError` if the tokenizer of the policy is not available here.
    """
    check_address(address)
    policy = open_policy(address)
    renderer = make_renderer(policy.tokenizer if is_weights(address) else None)  # type: ignore[attr-defined]
    return UserModel(policy, renderer, temperature=temperature, max_new_tokens=max_new_tokens)


def _swapped(history: Sequence[Message]) -> list[Message]:
    """Conversation with the roles of user and agent swapped, without tool calls and results."""
    return [
        Message(role="assistant" if message.role == "user" else "user", content=message.content)
        for message in history
        if message.role == "user" or (message.role == "assistant" and not message.tool_calls)
    ]
