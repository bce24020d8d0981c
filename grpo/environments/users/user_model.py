"""The words of a simulated user, from any policy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from grpo.environments.users.user import SimulatedUserError
from grpo.errors import ConfigError
from grpo.messages import Message
from grpo.policy.catalog import CHAT, STUB, open_policy
from grpo.policy.policy import Policy, Prompt, Sampler, Sampling
from grpo.renderers.byte_renderer import ByteRenderer
from grpo.renderers.chat_template import Renderer

END = "[END]"
"""What the model writes when the user has what it wants."""

ROLE = """\
You are a customer who talks to a support agent. Stay in this role: you ask, the agent helps.
Say one short message at a time, in your own words. Tell a fact of the list only when the agent asks for it.
When you have what you want, write {end} and nothing else.

{goal}"""
_GREETING = Message(role="user", content="Hello, what can I do for you?")


class UserModel:
    """Speaks as a user through a policy. Each turn is asked for anew, with the whole conversation in it.

    Raises `SimulatedUserError` where the policy's server cannot be reached or does not answer in time.
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
        """Keep one sampler for everything that is said in the running event loop."""
        loop = asyncio.get_running_loop()
        async with self.policy.sampler(concurrency=concurrency, renderer=self.renderer) as sampler:
            self._samplers[loop] = sampler
            try:
                yield
            finally:
                del self._samplers[loop]

    async def say(self, goal: str, history: Sequence[Message], *, seed: int) -> str:
        """The user's next words in a conversation whose last message is the agent's."""
        sampler = self._samplers.get(asyncio.get_running_loop())
        if sampler is None:
            async with self.serve(concurrency=1):
                return await self.say(goal, history, seed=seed)
        messages = (Message(role="system", content=ROLE.format(goal=goal, end=END)), _GREETING, *_swapped(history))
        prompt = Prompt(new_ids=self.renderer.build_prompt(messages), messages=messages)
        sampling = Sampling(temperature=self.temperature, max_new_tokens=self.max_new_tokens, seed=seed)
        session = sampler.open()
        try:
            said = await session.generate(prompt, sampling)
        except (ConnectionError, TimeoutError) as error:
            raise SimulatedUserError(f"the simulated user's model does not answer: {error}") from error
        finally:
            session.close()
        return (said.message or self.renderer.parse_reply(said.token_ids)).content


def open_user_model(address: str, *, temperature: float, max_new_tokens: int) -> UserModel:
    """The voice of the policy at an address: a chat server, a script, or a model folder.

    Raises `ConfigError` for a policy that reads tokens of a tokenizer which is not here.
    """
    kind, separator, _ = address.partition("://")
    if separator and kind.partition("+")[0] not in (CHAT, STUB):
        raise ConfigError(
            f"environment.model {address}: a simulated user speaks through {CHAT}+http(s)://host/v1#model, "
            f"{STUB}://replies.yaml or a model folder"
        )
    policy = open_policy(address)
    renderer = ByteRenderer() if separator else Renderer(policy.tokenizer)  # type: ignore[attr-defined]
    return UserModel(policy, renderer, temperature=temperature, max_new_tokens=max_new_tokens)


def _swapped(history: Sequence[Message]) -> list[Message]:
    """The conversation from the other side: the agent is who the model listens to. Tools are not heard."""
    return [
        Message(role="assistant" if message.role == "user" else "user", content=message.content)
        for message in history
        if message.role == "user" or (message.role == "assistant" and not message.tool_calls)
    ]
