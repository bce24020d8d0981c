"""Cost of the judge: a ledger of tokens and money on disk, and its budget."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from grpo.errors import RewardError, Unscored
from grpo.storage.files import storage_errors

_MILLION = 1_000_000


class BudgetExceeded(Unscored):
    """The judge is not called, because its budget of tokens or money is used up."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    time: str
    model: str
    prompt_tokens: int | None
    """None if the server reports no usage."""
    completion_tokens: int | None
    cost: float | None
    """None if there are no prices or no tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeUsage:
    """Sums of a ledger."""

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    unmetered: int = 0
    """Answers without reported tokens. The sums do not include them."""
    unpriced: int = 0
    """Answers without a price. The cost does not include them."""

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens

    def __str__(self) -> str:
        cost = f", {self.cost:.6g} in money" if self.unpriced < self.answers else ""
        return f"{self.answers} answers, {self.prompt_tokens} + {self.completion_tokens} tokens{cost}"


class CostLedger:
    """File with one line per answer, which several runs and processes may share. The budget holds for the file.

    When the budget runs out, calls under way are still paid for, so that as many answers as there are concurrent calls
    may exceed it. Raises `RewardError` if the file is damaged, or if there is a budget and the server reports no usage.
    """

    def __init__(
        self,
        path: Path,
        *,
        prompt_price: float | None = None,
        completion_price: float | None = None,
        budget_tokens: int | None = None,
        budget_cost: float | None = None,
    ) -> None:
        self.path = path
        self.prompt_price, self.completion_price = prompt_price, completion_price
        self.budget_tokens, self.budget_cost = budget_tokens, budget_cost
        self._spent = JudgeUsage()
        self._read_bytes = 0
        self._lines = 0

    @property
    def usage(self) -> JudgeUsage:
        """Sums of the whole file, including lines of other processes."""
        if not self.path.exists():
            return self._spent
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._lines += 1
            self._spent = self._with(line)
        self._read_bytes += len(whole)
        return self._spent

    def check(self) -> None:
        """Raise `BudgetExceeded` once the budget is used up."""
        usage = self.usage
        if self.budget_tokens is not None and usage.tokens >= self.budget_tokens:
            raise BudgetExceeded(
                f"the budget of {self.budget_tokens} tokens is spent ({usage}). Raise budget_tokens, or set folder to "
                "a new one"
            )
        if self.budget_cost is not None and usage.cost >= self.budget_cost:
            raise BudgetExceeded(
                f"the budget of {self.budget_cost:g} is spent ({usage}). Raise budget_cost, or set folder to a new one"
            )

    def add(self, model: str, prompt_tokens: int | None, completion_tokens: int | None) -> None:
        """Append the usage of an answer. One line is one write, so that lines of several processes do not mix."""
        cost = None
        if prompt_tokens is None or completion_tokens is None:
            if self.budget_tokens is not None or self.budget_cost is not None:
                raise RewardError(
                    f"{model} does not say how many tokens it used, so no budget can be held. Remove budget_tokens and "
                    "budget_cost, or use a server that reports usage"
                )
        elif self.prompt_price is not None and self.completion_price is not None:
            cost = (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / _MILLION
        line = _Line(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            model=model,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost=cost,
        )
        with storage_errors(str(self.path)):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(file, line.model_dump_json().encode() + b"\n")
            finally:
                os.close(file)

    def _with(self, text: bytes) -> JudgeUsage:
        try:
            line = _Line.model_validate_json(text)
        except ValidationError:
            raise RewardError(
                f"line {self._lines} of {self.path} is damaged, so what was spent is not known. Repair or remove it"
            ) from None
        usage = replace(
            self._spent, answers=self._spent.answers + 1, unpriced=self._spent.unpriced + (line.cost is None)
        )
        if line.prompt_tokens is None or line.completion_tokens is None:
            return replace(usage, unmetered=usage.unmetered + 1)
        return replace(
            usage,
            prompt_tokens=usage.prompt_tokens + line.prompt_tokens,
            completion_tokens=usage.completion_tokens + line.completion_tokens,
            cost=usage.cost + (line.cost or 0.0),
        )
