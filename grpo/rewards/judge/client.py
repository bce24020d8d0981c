"""Client of the judge's server: bounded concurrency, retries, a circuit breaker, and a ledger of tokens and cost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.config.rewards import JudgeSettings
from grpo.errors import ConfigError, PolicyError, RewardError, Unscored
from grpo.policy.circuit_breaker import CircuitBreaker, CircuitOpen
from grpo.policy.openai_answers import ChatAnswer
from grpo.policy.openai_endpoint import OpenAIEndpoint, RequestFailed
from grpo.rewards.judge.budget import CostLedger

if TYPE_CHECKING:
    from openai import AsyncOpenAI

logger = logging.getLogger(__name__)

_SCHEME = "openai+"


@dataclass(slots=True, kw_only=True)
class _Session:
    """State that concurrent requests of one event loop share."""

    client: AsyncOpenAI
    slots: asyncio.Semaphore
    requests: int = 0


class JudgeClient:
    """Client of one model on one server."""

    def __init__(self, settings: JudgeSettings) -> None:
        if not settings.model.startswith(_SCHEME):
            raise ConfigError(f"judge {settings.model!r}: expected an address as {_SCHEME}https://host/v1#model")
        self.settings = settings
        self.server = OpenAIEndpoint.from_address(
            settings.model.removeprefix(_SCHEME),
            timeout_s=settings.timeout_s,
            reply_s=settings.deadline_s,
            retries=settings.retries,
            key=settings.api_key_env,
        )
        self.breaker = CircuitBreaker(failure_threshold=settings.failure_threshold, timeout_s=settings.cooldown_s)
        self.ledger = CostLedger(
            Path(settings.folder) / "ledger.jsonl",
            prompt_price=settings.prompt_price,
            completion_price=settings.completion_price,
            budget_tokens=settings.budget_tokens,
            budget_cost=settings.budget_cost,
        )
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}

    def request(self, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """Body of the request. The answer depends on all of it."""
        request: dict[str, Any] = {
            "model": self.server.model,
            "messages": [dict(message) for message in messages],
            "max_completion_tokens": self.settings.max_completion_tokens,
            "response_format": {"type": "json_object"},
        }
        if self.settings.temperature is not None:
            request["temperature"] = self.settings.temperature
        return request

    async def send(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Text of the judge's answer. Raises `Unscored` if the request fails, `RewardError` if all requests would."""
        try:
            async with self._session() as session, session.slots:
                self.ledger.check()
                async with self.breaker:
                    return await self._answer(session.client, self.request(messages))
        except CircuitOpen as error:
            raise Unscored(f"{self.server.address} is {error}") from error
        except (ConnectionError, TimeoutError, RequestFailed) as error:
            raise Unscored(str(error)) from error
        except PolicyError as error:
            raise RewardError(str(error)) from error

    async def _answer(self, client: AsyncOpenAI, request: Mapping[str, Any]) -> str:
        server, deadline = self.server, asyncio.timeout(self.settings.deadline_s)
        try:
            async with deadline:
                answer = await server.send(client.chat.completions.create(**request), ChatAnswer)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise TimeoutError(
                f"{server.address} gave no whole answer in {self.settings.deadline_s:g} s (deadline_s)"
            ) from None
        usage = answer.usage
        self.ledger.add(server.address, usage.prompt_tokens, usage.completion_tokens)
        logger.info("judge %s: %s spent so far", server.address, self.ledger.usage)
        content = answer.choices[0].message.content
        return server.redact(content) if isinstance(content, str) else ""

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[_Session]:
        """One client for all concurrent requests, because making one takes 50 ms. The last request closes it."""
        loop = asyncio.get_running_loop()
        if (session := self._sessions.get(loop)) is None:
            client = self.server.client()
            session = _Session(client=client, slots=asyncio.Semaphore(self.settings.concurrency))
            self._sessions[loop] = session
        session.requests += 1
        try:
            yield session
        finally:
            session.requests -= 1
            if not session.requests:
                del self._sessions[loop]
                await session.client.close()
