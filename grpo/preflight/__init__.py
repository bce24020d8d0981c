"""Checks before a run: everything that can be refused without training is refused before the first stage.

The table is `CHECKS`; `check` calls it for every command and every flow.
"""

from grpo.preflight.check import Check, Purpose, check, find_faults, prepared
from grpo.preflight.checks import CHECKS
from grpo.preflight.facts import Facts
from grpo.preflight.faults import Fault, raise_faults

__all__ = ["CHECKS", "Check", "Facts", "Fault", "Purpose", "check", "find_faults", "prepared", "raise_faults"]
