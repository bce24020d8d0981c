"""Checks before a run: everything that can be refused without training is refused before the first stage.

`CHECKS` is the table of all checks. Every command and every flow calls `check`, which runs them.
"""

from grpo.preflight.check import Check, Purpose, check, find_faults
from grpo.preflight.checks import CHECKS
from grpo.preflight.facts import Facts
from grpo.preflight.faults import Fault, raise_faults

__all__ = ["CHECKS", "Check", "Facts", "Fault", "Purpose", "check", "find_faults", "raise_faults"]
