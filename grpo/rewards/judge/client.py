"""How the judge is reached: so many questions at once, retried, guarded by a breaker, written into the ledger."""

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
from grpo.policy.openai_endpoint import OpenAIEndpoint, RequestFailed
from grpo.rewards.judge.budget import CostLedger

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion

logger = logging.getLogger(__name__)

_SCHEME = "openai+"


@dataclass(slots=True, kw_only=True)
class _Line:
    """What the questions of one event loop share while any of them is under way."""

    client: AsyncOpenAI
    places: asyncio.Semaphore
    questions: int = 0


class JudgeClient:
    """Asks one model on one server."""

    def __init__(self, settings: JudgeSettings) -> None:
        if not settings.model.startswith(_SCHEME):
            raise ConfigError(f"judge {settings.model!r}: expected an address as {_SCHEME}https://host/v1#model")
        self.settings = settings
        self.server = OpenAIEndpoint.from_address(
            settings.model.removeprefix(_SCHEME),
            timeout_s=settings.timeout_s,
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
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}

    def request(self, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """What is sent, and what the answer depends on."""
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
        """The judge's words. Raises `Unscored` where this question got none, `RewardError` where none ever will."""
        try:
            async with self._line() as line, line.places:
                self.ledger.check()
                async with self.breaker:
                    return await self._answer(line.client, self.request(messages))
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
                answer = await server.send(client.chat.completions.create(**request), "message")
        except TimeoutError:
            if not deadline.expired():
                raise
            raise TimeoutError(
                f"{server.address} gave no whole answer in {self.settings.deadline_s:g} s (deadline_s)"
            ) from None
        self.ledger.add(server.address, _told(answer, "prompt_tokens"), _told(answer, "completion_tokens"))
        logger.info("%s: %s in all", server.address, self.ledger.usage)
        content = answer.choices[0].message.content
        return server.redact(content) if isinstance(content, str) else ""

    @asynccontextmanager
    async def _line(self) -> AsyncIterator[_Line]:
        """One client for all questions that are under way, as making one takes 50 ms; the last one closes it."""
        loop = asyncio.get_running_loop()
        if (line := self._lines.get(loop)) is None:
            client = self.server.client()
            line = self._lines[loop] = _Line(client=client, places=asyncio.Semaphore(self.settings.concurrency))
        line.questions += 1
        try:
            yield line
        finally:
            line.questions -= 1
            if not line.questions:
                del self._lines[loop]
                await line.client.close()


def _told(answer: ChatCompletion, count: str) -> int | None:
    """Tokens that the server says it used; None where it says nothing, or no number: its client checks no types."""
    told = getattr(answer.usage, count, None)
    return told if isinstance(told, int) and told >= 0 else None
