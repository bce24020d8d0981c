"""Form of a check: a name, a function of the facts, and the purposes that it is made for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from grpo.preflight.facts import Facts

SERVERS, STORE = "servers answer", "home and store can be written"
"""Names of checks that other checks need."""
Purpose = Literal["train", "trial", "evaluate"]
Depth = Literal["files", "all"]
"""`files` leaves out the checks that import torch or MLflow."""
ALWAYS: frozenset[Purpose] = frozenset({"train", "trial", "evaluate"})
TRAINING: frozenset[Purpose] = frozenset({"train", "trial"})
GATED: frozenset[Purpose] = frozenset({"train"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check."""

    name: str
    test: Callable[[Facts], Iterable[Exception]]
    """Function that yields every fault, or raises the first."""
    purposes: frozenset[Purpose] = ALWAYS
    imports: bool = False
    """True if it imports torch or MLflow, which takes seconds."""
    needs: str | None = None
    """Name of another check. If that one fails, this one is left out, because e.g. MLflow's client would wait minutes
    for a server that is away."""
