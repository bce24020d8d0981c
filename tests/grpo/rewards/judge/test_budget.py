from __future__ import annotations

from pathlib import Path

import pytest

from grpo.errors import RewardError
from grpo.rewards.judge.budget import BudgetExceeded, CostLedger, JudgeUsage


def test_tokens_and_money_are_summed(tmp_path: Path):
    """2 per million read, 8 per million written: (1000·2 + 500·8)/1e6 = .006, and (2000·2)/1e6 = .004."""
    ledger = CostLedger(tmp_path / "ledger.jsonl", prompt_price=2, completion_price=8)
    ledger.add("m", 1000, 500)
    ledger.add("m", 2000, 0)
    assert ledger.usage == JudgeUsage(answers=2, prompt_tokens=3000, completion_tokens=500, cost=pytest.approx(0.01))
    assert str(ledger.usage) == "2 answers, 3000 + 500 tokens, 0.01 in money"


def test_a_ledger_goes_on_where_others_write(tmp_path: Path):
    """Two on one file, as in two processes; a third that starts later."""
    first, second = CostLedger(tmp_path / "l.jsonl"), CostLedger(tmp_path / "l.jsonl", budget_tokens=60)
    first.add("m", 10, 1)
    second.add("m", 20, 2)
    first.add("m", 30, 3)
    assert [ledger.usage.tokens for ledger in (first, second, CostLedger(tmp_path / "l.jsonl"))] == [66, 66, 66]
    with pytest.raises(BudgetExceeded, match=r"the budget of 60 tokens is spent \(3 answers, 60 \+ 6 tokens\)"):
        second.check()


def test_a_budget_holds_until_it_is_spent(tmp_path: Path):
    """.9 of 1 passes, 1 of 1 does not; a bigger budget goes on."""
    ledger = CostLedger(tmp_path / "l.jsonl", prompt_price=1, completion_price=0, budget_cost=1)
    ledger.check()
    ledger.add("m", 900_000, 5)
    ledger.check()
    ledger.add("m", 100_000, 5)
    with pytest.raises(BudgetExceeded, match=r"the budget of 1 is spent .*\. Raise budget_cost, or set folder"):
        ledger.check()
    CostLedger(tmp_path / "l.jsonl", budget_tokens=2_000_000).check()


def test_unreported_tokens_are_missing_and_counted(tmp_path: Path):
    """Not 0 tokens, but one unmetered answer; without a price the cost is absent."""
    ledger = CostLedger(tmp_path / "l.jsonl")
    ledger.add("m", None, None)
    ledger.add("m", 5, 5)
    assert ledger.usage == JudgeUsage(answers=2, prompt_tokens=5, completion_tokens=5, unmetered=1, unpriced=2)
    assert str(ledger.usage) == "2 answers, 5 + 5 tokens"


def test_no_budget_is_pretended_where_it_cannot_be_held(tmp_path: Path):
    """A server without usage, and a limit on usage."""
    ledger = CostLedger(tmp_path / "l.jsonl", budget_tokens=10)
    with pytest.raises(RewardError, match="m does not say how many tokens it used, so no budget can be held"):
        ledger.add("m", None, None)


def test_a_damaged_ledger_stops_the_spending(tmp_path: Path):
    """The message names the line; an unfinished line is read later."""
    path = tmp_path / "l.jsonl"
    ledger = CostLedger(path)
    ledger.add("m", 5, 5)
    line = path.read_bytes()
    path.write_bytes(line + line[:20])
    assert ledger.usage.answers == 1
    path.write_bytes(line + line)
    assert ledger.usage.answers == 2
    path.write_bytes(line + b"{}\n")
    with pytest.raises(RewardError, match=r"line 2 of .*l\.jsonl is damaged"):
        CostLedger(path).check()
