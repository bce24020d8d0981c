"""Limits per caller: requests and tokens a minute, parallel requests, token budgets of a day and a month."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from grpo.serving.api_errors import APIError
from grpo.serving.callers import Caller

LimitKind = Literal["requests", "tokens", "parallel", "tokens_per_day", "tokens_per_month"]


class LimitExceeded(APIError):
    """429 for a limit of the caller; `retry_after_s` is None where the same request can never be admitted."""

    kind: LimitKind


class Limiter:
    """Admission of requests within the limits of their callers, exact for all requests of this process."""

    def __init__(
        self,
        budgets: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None: ...

    async def reserve(self, caller: Caller, tokens: int) -> Reservation:
        """Admit a request that takes at most `tokens` (prompt and bound of the completion). Raises `LimitExceeded`."""
        raise NotImplementedError

    def headers(self, caller: Caller) -> dict[str, str]:
        """OpenAI's x-ratelimit-{limit,remaining,reset}-{requests,tokens}, of the limits that the caller has."""
        raise NotImplementedError


class Reservation:
    """An admitted request; it takes its tokens until it is settled."""

    def settle(self, tokens: int) -> None:
        """End the request and refund the tokens that it did not use. The first call counts, later ones do nothing."""
        raise NotImplementedError
